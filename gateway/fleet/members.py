"""Records becoming workers, and workers leaving.

Owns: what the registration of a URL, its change and its removal mean for the fleet and for probing. Must
never enter: stores, HTTP, states (the fleet's).
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.fleet.cordons.cordons import Cordons
from gateway.fleet.cordons.departures import Departures
from gateway.fleet.health.health import Health
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource, WorkerState
from gateway.fleet.worker import Worker
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address


class Members:
    """``authorization`` is the ``Authorization`` value for every worker, or None.

    ``marks`` hold back, or dismiss, whom they are about. Workers given by ``pin`` are members whatever a
    store says, until they are dismissed by name.
    """

    def __init__(self, fleet: Fleet, health: Health, authorization: bytes | None, marks: Cordons) -> None:
        self._fleet = fleet
        self._marks = marks
        self._lapses = Departures(marks)
        marks.removed = self.dismiss
        self._health = health
        self._authorization = authorization
        self._pinned: set[str] = set()

    def pin(self, record: WorkerRecord) -> None:
        """Admit a worker that is not the store's, without probing it yet; ``watch_all`` begins that."""
        self._pinned.add(record.url)
        self._enter(record)

    def is_pinned(self, url: str) -> bool:
        return url in self._pinned

    def watch_all(self) -> None:
        """Begin to probe every member."""
        for worker in self._fleet.workers:
            self._health.watch(worker)

    def admit(self, record: WorkerRecord) -> Worker:
        """Take in a worker, or the change of one; the same again changes nothing.

        One that is registered again is probed at once, if it was thought dead or was being drained.
        """
        worker = self._find(record.url)
        if worker is None:
            worker = self._enter(record)
        else:
            known, worker.record = worker.record, record
            self._change(worker, known)
            self._lapses.came(record)
            self._fleet.rejoin(worker)
        self._health.watch(worker)
        return worker

    def keep_only(self, records: Iterable[WorkerRecord]) -> None:
        """These are all that a store has: admit them, dismiss all others that are not pinned."""
        wanted = {record.url: record for record in records}
        for worker in self._fleet.workers:
            if worker.url not in wanted and worker.url not in self._pinned:
                self._lapse(worker)
        for record in wanted.values():
            self.refresh(record)

    def refresh(self, record: WorkerRecord) -> None:
        """A store has this record: admit it unless that is known."""
        worker = self._fleet.find(record.url)
        if worker is None or worker.record != record or worker.state is WorkerState.DRAINING:
            self.admit(record)

    def gone(self, url: str) -> None:
        """A store has it no more. Nobody said that it is not to come back: its marks wait for it."""
        worker = self._find(url)
        if worker is not None and url not in self._pinned:
            self._lapse(worker)

    def dismiss(self, url: str) -> bool:
        """Somebody removed the worker with this URL: drain it, pinned or not; False if there is none."""
        self._pinned.discard(url)
        worker = self._find(url)
        if worker is not None:
            self._health.forget(worker)
            self._fleet.drain(worker)
        self._marks.lift(url, held=True)
        return worker is not None

    def _enter(self, record: WorkerRecord) -> Worker:
        self._lapses.came(record)
        worker = Worker(Address.parse(record.url), authorization=self._authorization, record=record)
        self._fleet.add(worker)
        if record.held:
            self._hold(worker)
        self._marks.enter(worker)
        return worker

    def _change(self, worker: Worker, known: WorkerRecord) -> None:
        if worker.record.held and not known.held:
            self._hold(worker)
        elif known.held and not worker.record.held:
            self._fleet.uncordon(worker, CordonSource.OWNER)
        if worker.record.succeeds(known.incarnation):
            self._marks.lift(worker.url, held=True)

    def _hold(self, worker: Worker) -> None:
        self._fleet.cordon(worker, CordonSource.OWNER, "held until it is opened")

    def _find(self, url: str) -> Worker | None:
        worker = self._fleet.find(url)
        return worker if worker is not None and worker.url == url else None

    def _lapse(self, worker: Worker) -> None:
        self._health.forget(worker)
        self._fleet.drain(worker)
        if self._lapses.left(worker.record):
            self._health.look_after(worker)
