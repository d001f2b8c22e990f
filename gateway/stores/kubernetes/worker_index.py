"""All objects that are known, and the workers they make together.

Owns: which object said what, who has a URL that several claim, and the difference that an object makes. Must
never enter: I/O, the shape of an object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from gateway.stores.base import Gone, Put
from gateway.stores.kubernetes.reading import Candidate, ObjectWorkers
from gateway.stores.record import WorkerRecord

log = logging.getLogger(__name__)

#: Namespace and name.
Name = tuple[str, str]


class WorkerIndex:
    """``records`` are the workers by URL."""

    def __init__(self) -> None:
        self._readings: dict[Name, ObjectWorkers] = {}
        self.records: Mapping[str, WorkerRecord] = {}

    def replace(self, readings: Mapping[Name, ObjectWorkers]) -> None:
        """Forget all, and know only ``readings``."""
        before, self._readings = self._readings, dict(readings)
        for name, reading in readings.items():
            _complain(name, reading, before.get(name))
        self.records = merge(self._seats())

    def update(self, name: Name, reading: ObjectWorkers | None) -> list[Put | Gone]:
        """What the object ``name`` says now, None: it is no more. Who joins is told before who leaves."""
        before = self._readings.pop(name, None)
        if reading is not None:
            self._readings[name] = reading
            _complain(name, reading, before)
        if (before.seats if before else ()) == (reading.seats if reading else ()):
            return []
        old, self.records = self.records, merge(self._seats())
        joined = [Put(record) for url, record in self.records.items() if old.get(url) != record]
        return [*joined, *(Gone(url) for url in old if url not in self.records)]

    def _seats(self) -> Iterator[Candidate]:
        return (seat for reading in self._readings.values() for seat in reading.seats)


def _complain(name: Name, reading: ObjectWorkers, before: ObjectWorkers | None) -> None:
    # Once, not with every heartbeat of an object that stays as it is.
    if reading.problem and (before is None or before.problem != reading.problem):
        log.warning("kubernetes: %s/%s: %s", *name, reading.problem)


def merge(seats: Iterable[Candidate]) -> dict[str, WorkerRecord]:
    """One record for each server, and one server for each URL.

    A server can be in several objects: in two slices while Kubernetes moves it, in slices of both families of
    addresses for as long as it lives. Two servers can have one URL: an address is given to a new pod before
    the end of the old one is known.
    """
    servers: dict[tuple[str, str], Candidate] = {}
    for seat in seats:
        known = servers.get(seat.identity)
        if known is None or _liking(seat) > _liking(known):
            servers[seat.identity] = seat
    owners: dict[str, Candidate] = {}
    for seat in servers.values():
        owner = owners.get(seat.record.url)
        if owner is None or seat.born >= owner.born:
            owners[seat.record.url] = seat
    return {url: seat.record for url, seat in owners.items()}


def _liking(seat: Candidate) -> tuple[int, str]:
    return -seat.rank, seat.born
