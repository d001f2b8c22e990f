"""Turn records into workers of the fleet, and take workers out of it.

Owns: what the registration of a URL, its change and its removal mean for the fleet, for probing and for
cordons. Must never enter: stores, HTTP, states (the fleet's).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gateway.fleet.card import CardSource
from gateway.fleet.cordons import DISMISSED, Cordons
from gateway.fleet.health.health import Health
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource, WorkerState
from gateway.fleet.worker import Worker
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address, identity_of

log = logging.getLogger(__name__)


class FleetMembership:
    """The membership of workers. ``authorization`` is the ``Authorization`` value for every worker, or None.

    A pinned worker (``pin``) is a member whatever a store says, until it is dismissed by name.
    """

    def __init__(self, fleet: Fleet, health: Health, authorization: bytes | None, cordons: Cordons) -> None:
        self._fleet = fleet
        self._health = health
        self._authorization = authorization
        self._cordons = cordons
        self._pinned: set[str] = set()

    def pin(self, record: WorkerRecord) -> None:
        """Add a worker that is in no store, without probing it yet; ``watch_all`` begins that.

        Of several spellings of one URL the first one counts.
        """
        if record.identity in self._pinned:
            return log.warning("worker %s is another spelling of one that is given already", record.url)
        self._pinned.add(record.identity)
        self._add(record, CardSource.REGISTRATION)

    def is_pinned(self, url: str) -> bool:
        return identity_of(url) in self._pinned

    def watch_all(self) -> None:
        """Begin to probe every member."""
        for worker in self._fleet.workers:
            self._health.watch(worker)

    def admit(self, record: WorkerRecord, source: CardSource = CardSource.REGISTRATION) -> Worker:
        """Add a worker, or change what is registered of it; an equal record changes nothing.

        ``source`` is where the record comes from. A worker that was dead or draining is probed at once.
        """
        worker = self._fleet.at(record.url)
        if worker is None:
            worker = self._add(record, source)
        else:
            known = worker.record
            self._fleet.replace_record(worker, record, source)
            if record.cordoned and not known.cordoned:
                self._fleet.cordon(worker, CordonSource.OWNER)
            elif known.cordoned and not record.cordoned:
                self._fleet.uncordon(worker, CordonSource.OWNER)
            if record.succeeds(known.incarnation):
                self._cordons.remove_all(worker.url)
            self._cordons.on_worker_added(record)
            self._fleet.rejoin(worker)
        if worker.state is not WorkerState.GONE:  # as a dismissed one is
            self._health.watch(worker)
        return worker

    def keep_only(self, records: Iterable[WorkerRecord]) -> None:
        """Admit ``records``, which are all of a store's; remove all other members that are not pinned."""
        wanted = {record.identity: record for record in records}
        for worker in self._fleet.workers:
            if worker.identity not in wanted:
                self.on_record_removed(worker.url)
        for record in wanted.values():
            self.refresh(record)

    def refresh(self, record: WorkerRecord) -> None:
        """Admit a record of a store, unless it is known already."""
        worker = self._fleet.at(record.url)
        if worker is None or worker.record != record or worker.state is WorkerState.DRAINING:
            self.admit(record, CardSource.STORE)

    def on_record_removed(self, url: str) -> None:
        """Drain a worker that a store has no record of any more, unless it is pinned.

        Its cordons are kept, because it may return.
        """
        worker = self._fleet.at(url)
        if worker is None or self.is_pinned(url):
            return
        self._health.forget(worker)
        self._fleet.drain(worker)
        if self._cordons.on_record_removed(worker.record):
            self._health.check_reachable(worker)

    def dismiss(self, url: str) -> bool:
        """Drain the worker with this URL, pinned or not, as somebody removed it; False if there is none."""
        self._pinned.discard(identity_of(url))
        worker = self._fleet.at(url)
        if worker is not None:
            self._health.forget(worker)
            self._fleet.drain(worker)
        self._cordons.remove_all(url)
        return worker is not None

    def _add(self, record: WorkerRecord, source: CardSource) -> Worker:
        self._cordons.on_worker_added(record)
        worker = Worker(Address.parse(record.url), authorization=self._authorization, record=record)
        worker.record_source = source
        self._fleet.add(worker)
        if record.cordoned:
            self._fleet.cordon(worker, CordonSource.OWNER)
        self._cordons.apply_to(worker)
        if DISMISSED in self._cordons.of(record.url):
            self.dismiss(record.url)
        return worker
