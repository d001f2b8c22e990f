"""All workers, and which of them can serve a request now.

Owns: membership, each worker's state, its connections, and leases. Must never enter: a dialect, probing
(``health`` reports what it finds), the choice among equals (a policy's).
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from gateway.errors import InvalidRequest, NoWorker, UnknownModel
from gateway.fleet.changes import ChangeKind, Changes, Followers
from gateway.fleet.worker import Worker, WorkerState
from gateway.formats.base import WorkerInfo
from gateway.routing.policy import Policy
from gateway.transport.names import Names
from gateway.transport.pool import Pool

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Roster:
    """The usable workers of one capability, and by model which of them serve it."""

    workers: tuple[Worker, ...] = ()
    by_model: Mapping[str, tuple[Worker, ...]] = field(default_factory=dict)
    #: Models of members that are away for now: who asks for one gets no other.
    away: frozenset[str] = frozenset()
    #: True: the members do not all have the same base model, so a request has to name one.
    mixed: bool = False


class Fleet:
    """Registry of workers. ``connect_timeout`` is in seconds, ``tls`` the context for https workers.

    ``names`` are shared with the probes. ``died`` is told the life (Worker.life) of each worker that is found
    dead.
    """

    def __init__(
        self,
        policy: Policy,
        connect_timeout: float,
        tls: ssl.SSLContext | None = None,
        died: Callable[[object], None] = lambda life: None,
        names: Names | None = None,
    ) -> None:
        self._names = names or Names()
        self._policy = policy
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._died = died
        self._workers: dict[str, Worker] = {}
        self._rosters: dict[str, Roster] = {}
        self._followers = Followers()

    def __repr__(self) -> str:
        ready = sum(worker.state is WorkerState.READY for worker in self._workers.values())
        return f"<Fleet {ready} of {len(self._workers)} ready>"

    @property
    def workers(self) -> Sequence[Worker]:
        """All members, in the order they joined."""
        return tuple(self._workers.values())

    def add(self, worker: Worker) -> None:
        """Take ``worker`` in; one with the same URL is replaced."""
        self.remove(worker.url)
        address = worker.address
        if address.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        tls = self._tls if address.tls else None
        worker.pool = Pool(address.host, address.port, tls, self._connect_timeout, self._names)
        self._workers[worker.url] = worker
        self._rosters.clear()
        self._followers.tell(ChangeKind.JOINED, worker)

    def remove(self, url: str) -> None:
        """Let a member go; exchanges that run on it go on. Unknown URLs are ignored."""
        worker = self._workers.pop(url, None)
        if worker is not None:
            worker.pool.close()
            self._rosters.clear()
            self._followers.tell(ChangeKind.LEFT, worker)

    def close(self) -> None:
        """Close all idle connections."""
        for worker in self._workers.values():
            worker.pool.close()

    def set_state(self, worker: Worker, state: WorkerState, reason: str = "") -> None:
        """Record a transition; it takes effect for the next request."""
        changed = state is not worker.state
        if changed:
            why = f": {reason}" if reason else ""
            log.info("worker %s: %s -> %s%s", worker.url, worker.state, state, why)
            if state is WorkerState.DEAD:
                life, worker.life = worker.life, object()
                self._died(life)
        worker.state = state
        worker.reason = reason
        self._rosters.clear()
        # One that left may still be found dead by an exchange that runs on it; that concerns nobody.
        if changed and self._workers.get(worker.url) is worker:
            self._followers.tell(ChangeKind.STATE, worker)

    def follow(self) -> AbstractContextManager[Changes]:
        """Joins, leaves and transitions from now on, until the context ends; no follower is waited for."""
        return self._followers.follow()

    def usable(self, capability: str) -> Sequence[Worker]:
        """The workers that can serve ``capability`` now."""
        return self._roster(capability).workers

    def models(self) -> Mapping[str, WorkerInfo]:
        """Each model that some ready worker serves, with the info of one that does."""
        found: dict[str, WorkerInfo] = {}
        for worker in self._workers.values():
            if worker.state is WorkerState.READY:
                for info in worker.infos.values():
                    for model in info.models if info.usable else ():
                        found.setdefault(model, info)
        return found

    def lease(self, capability: str, model: str | None, excluding: Collection[Worker] = ()) -> Worker:
        """Pick a worker and hold it until ``release``.

        Raises NoWorker, UnknownModel (the fleet serves several models, but not this one) and InvalidRequest
        (it serves several and none was named).
        """
        roster = self._roster(capability)
        candidates = self._of_model(roster, model)
        if excluding:
            candidates = [worker for worker in candidates if worker not in excluding]
        if not candidates:
            raise NoWorker("no worker is available at the moment; please try again")
        worker = self._policy.pick(candidates) if len(candidates) > 1 else candidates[0]
        worker.in_flight += 1
        return worker

    def release(self, worker: Worker) -> None:
        worker.in_flight -= 1

    @staticmethod
    def _of_model(roster: Roster, model: str | None) -> Sequence[Worker]:
        if model is not None and model in roster.by_model:
            return roster.by_model[model]
        if model in roster.away:
            return ()
        if not roster.mixed:
            # One base model: an unknown name may be an adapter loaded a moment ago; the engine knows.
            return roster.workers
        if model is None:
            raise InvalidRequest("several models are served here; name one in `model`", param="model")
        raise UnknownModel(f"no worker serves the model {model[:256]!r}")

    def _roster(self, capability: str) -> Roster:
        roster = self._rosters.get(capability)
        if roster is None:
            roster = self._rosters[capability] = _build(capability, self._workers.values())
        return roster


def _build(capability: str, workers: Iterable[Worker]) -> Roster:
    usable: list[Worker] = []
    by_model: dict[str, list[Worker]] = {}
    known: set[str] = set()
    bases: set[str] = set()
    for worker in workers:
        info = worker.offers(capability)
        if info is None:
            continue
        known.update(info.models)
        bases.update(info.models[:1])  # the base model; adapters come and go
        if worker.state is WorkerState.READY:
            usable.append(worker)
            for model in info.models:
                by_model.setdefault(model, []).append(worker)
    served = {model: tuple(of) for model, of in by_model.items()}
    return Roster(tuple(usable), served, frozenset(known - served.keys()), len(bases) > 1)
