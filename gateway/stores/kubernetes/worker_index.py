"""The workers that all known objects describe together.

Owns: which object describes which workers, which of several gets a URL, and the changes that an object
causes. Must never enter: I/O, the structure of an object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from gateway.stores.base import Gone, Put
from gateway.stores.kubernetes.reading import Candidate, ObjectWorkers
from gateway.stores.record import WorkerRecord

log = logging.getLogger(__name__)

#: Namespace and name of an object.
Name = tuple[str, str]
#: Names of the server that does not get its URL and of the one that has it, and the URL.
Clash = tuple[str, str, str]


class WorkerIndex:
    """The workers of all objects. ``records`` has them by URL."""

    def __init__(self) -> None:
        self._objects: dict[Name, ObjectWorkers] = {}
        self._clashes: frozenset[Clash] = frozenset()
        self.records: Mapping[str, WorkerRecord] = {}

    def replace(self, objects: Mapping[Name, ObjectWorkers]) -> None:
        """Replace all objects."""
        before, self._objects = self._objects, dict(objects)
        for name, reading in objects.items():
            _log_problem(name, reading, before.get(name))
        self.records = merge(self._candidates())
        self._log_clashes()

    def update(self, name: Name, reading: ObjectWorkers | None) -> list[Put | Gone]:
        """Add, replace or remove (None) one object; return the changes, additions first."""
        before = self._objects.pop(name, None)
        if reading is not None:
            self._objects[name] = reading
            _log_problem(name, reading, before)
        if (before.candidates if before else ()) == (reading.candidates if reading else ()):
            return []
        old, self.records = self.records, merge(self._candidates())
        self._log_clashes()
        joined = [Put(record) for url, record in self.records.items() if old.get(url) != record]
        return [*joined, *(Gone(url) for url in old if url not in self.records)]

    def _log_clashes(self) -> None:
        before, self._clashes = self._clashes, clashes(self._candidates())
        for clash in sorted(self._clashes - before):
            log.warning(
                "kubernetes: %s and %s are both at %s, so only %s is a worker; if both run, give them"
                " different ports (--kubernetes-port-label, or the annotation tito-gateway/port)",
                *clash,
                clash[1],
            )

    def _candidates(self) -> Iterator[Candidate]:
        return (candidate for reading in self._objects.values() for candidate in reading.candidates)


def _log_problem(name: Name, reading: ObjectWorkers, before: ObjectWorkers | None) -> None:
    # Logged once, not at every update of the object's status.
    if reading.problem and (before is None or before.problem != reading.problem):
        log.warning("kubernetes: %s/%s: %s", *name, reading.problem)


def merge(candidates: Iterable[Candidate]) -> dict[str, WorkerRecord]:
    """Return one record for each server, and one server for each URL.

    A server can be in several objects: in two EndpointSlices while Kubernetes moves it, and always in one per
    IP family. Two servers can have the same URL: an address can be reused before the end of its former pod is
    known.
    """
    return {url: claims[-1].record for url, claims in _claims(candidates).items()}


def clashes(candidates: Iterable[Candidate]) -> frozenset[Clash]:
    """Return each server that does not get its URL, with the one that has it, and the URL."""
    return frozenset(
        (other.name, claims[-1].name, url)
        for url, claims in _claims(candidates).items()
        for other in claims[:-1]
    )


def _claims(candidates: Iterable[Candidate]) -> Mapping[str, Sequence[Candidate]]:
    """Return the servers by URL, the youngest one, which has it, last."""
    servers: dict[tuple[str, str], Candidate] = {}
    for candidate in candidates:
        known = servers.get(candidate.identity)
        if known is None or _preference(candidate) > _preference(known):
            servers[candidate.identity] = candidate
    claims: dict[str, list[Candidate]] = {}
    for candidate in servers.values():
        claims.setdefault(candidate.record.url, []).append(candidate)
    return {url: sorted(several, key=attrgetter("created")) for url, several in claims.items()}


def _preference(candidate: Candidate) -> tuple[int, str]:
    return -candidate.preference, candidate.created
