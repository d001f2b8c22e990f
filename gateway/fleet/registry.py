"""All workers, and which of them can serve a request now.

Owns: membership, each worker's state and cordons, its connections, and leases. Must never enter: a dialect,
probing (``health`` reports what it finds), the choice among equal workers (a policy's), a store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from gateway.errors import NoWorker, Overloaded
from gateway.fleet.card import CardBuilder, CardSource, recorded
from gateway.fleet.card_conflicts import CardConflicts
from gateway.fleet.changes import ChangeKind, Changes, Followers
from gateway.fleet.quotas import Quotas, WorkerQuotas
from gateway.fleet.roster import Roster, candidates, models_of, roster_of
from gateway.fleet.same_server import SameServers
from gateway.fleet.states import REASON_UPDATES, TRANSITIONS, CordonSource, WorkerEvent, WorkerState
from gateway.fleet.weights import reaches
from gateway.fleet.worker import FOREVER, Vitals, Worker
from gateway.formats.contract import UNKNOWN_LENGTH
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import Policy
from gateway.routing.rendezvous import Placement, RendezvousAffinity
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import identity_of
from gateway.upstream.connector import Connector

log = logging.getLogger(__name__)

#: Seconds between two lines of the log about why one worker is not usable.
REASON_INTERVAL = 10.0


class FleetMetrics(Protocol):
    """Counters of what happens in a fleet."""

    def worker_state_changed(self, before: WorkerState, after: WorkerState) -> None: ...

    def key_assigned(self, placement: Placement) -> None: ...


class _NoMetrics:
    def worker_state_changed(self, before: WorkerState, after: WorkerState) -> None: ...

    def key_assigned(self, placement: Placement) -> None: ...


class Fleet:
    """The registry of workers. ``connector`` makes the pool of each.

    ``on_death`` is called with URL and ``incarnation`` of each worker that is found dead. A worker below
    ``min_weight_version`` is cordoned. A worker has at most ``most_in_flight`` leases at once; None: any
    number. ``affinity`` picks the worker of a request with a key. ``cards`` makes the cards of workers.
    """

    def __init__(  # noqa: PLR0913 - the settings of a whole fleet
        self,
        policy: Policy,
        connector: Connector,
        *,
        on_death: Callable[[str, object], None] = lambda url, incarnation: None,
        min_weight_version: str | None = None,
        most_in_flight: int | None = None,
        affinity: RendezvousAffinity | None = None,
        metrics: FleetMetrics | None = None,
        cards: CardBuilder | None = None,
    ) -> None:
        self.connector = connector
        self.quotas = Quotas()
        self._policy = policy
        self._affinity = affinity or RendezvousAffinity()
        self._on_death = on_death
        self._metrics = metrics or _NoMetrics()
        self._min_weight_version = min_weight_version
        self._most_in_flight = most_in_flight
        #: By identity of the URL, and by id.
        self._workers: dict[str, Worker] = {}
        self._ids: dict[str, Worker] = {}
        self._rosters: dict[str, Roster] = {}
        self._same_servers = SameServers()
        self._cards = cards or CardBuilder()
        self._card_conflicts = CardConflicts()
        self._followers = Followers()
        self._on_release: Callable[[], None] | None = None

    def __repr__(self) -> str:
        ready = sum(worker.state is WorkerState.READY for worker in self._workers.values())
        return f"<Fleet {ready} of {len(self._workers)} ready>"

    # -- membership

    @property
    def workers(self) -> Sequence[Worker]:
        """All members, in the order they joined, those that drain included."""
        return tuple(self._workers.values())

    def find(self, key: str) -> Worker | None:
        """Return the member with this id or URL, however that is spelled."""
        return self._ids.get(key) or self.at(key)

    def at(self, url: str) -> Worker | None:
        """Return the member with this URL, however it is spelled."""
        return self._workers.get(identity_of(url))

    def add(self, worker: Worker) -> None:
        """Add ``worker``. Another one with the same URL leaves at once; its exchanges go on."""
        old = self._workers.get(worker.identity)
        if old is not None:
            self.apply_event(old, WorkerEvent.DRAIN, "replaced")
            self._leave(old)
        worker.quotas = WorkerQuotas(self.quotas)
        self._connect(worker)
        self._update_card(worker)
        self._workers[worker.identity] = self._ids[worker.id] = worker
        self._rosters.clear()
        self._same_servers.note(worker)
        self._followers.notify(ChangeKind.JOINED, worker)

    def rejoin(self, worker: Worker) -> None:
        """Cancel the drain of a member that is registered again; a dead one joins again."""
        drained = worker.state is WorkerState.DRAINING
        self.apply_event(worker, WorkerEvent.JOIN, "registered again, not probed yet")
        if drained:
            self._connect(worker)

    def drain(self, worker: Worker) -> None:
        """Lease ``worker`` no more; it leaves once nothing runs on it."""
        self.apply_event(worker, WorkerEvent.DRAIN, "removed")
        worker.pool.close()
        if not worker.in_flight:
            self._leave(worker)

    def close(self) -> None:
        """Close all idle connections."""
        for worker in self._workers.values():
            worker.pool.close()

    def _connect(self, worker: Worker) -> None:
        worker.pool = self.connector.pool_of(worker.address)

    def _leave(self, worker: Worker) -> None:
        if self._workers.get(worker.identity) is worker:
            del self._workers[worker.identity], self._ids[worker.id]
            self.apply_event(worker, WorkerEvent.LEAVE)
            worker.pool.close()
            self._same_servers.forget(worker)
            self._card_conflicts.forget(worker)
            self._followers.notify(ChangeKind.LEFT, worker)

    # -- states

    def apply_event(self, worker: Worker, event: WorkerEvent, reason: str = "") -> None:
        """Apply ``event`` to the state of ``worker``, with effect from the next request on."""
        if event in (WorkerEvent.SERVES, WorkerEvent.FULL) and worker.cordons:
            event, reason = WorkerEvent.CORDON, worker.cordons.why
        before = worker.state
        after = TRANSITIONS[before].get(event, before)
        if after is not before:
            worker.reason = reason
            self._change(worker, after)
        elif event in REASON_UPDATES.get(before, ()):
            worker.reason = reason
            if before is WorkerState.JOINING:
                self._log_reason(worker)

    def _log_reason(self, worker: Worker) -> None:
        """Log why ``worker`` is not usable, once for each change of the reason, not in quick succession."""
        vitals, now = worker.vitals, time.monotonic()
        if worker.reason != vitals.logged_reason and now >= vitals.reason_logged_at + REASON_INTERVAL:
            vitals.logged_reason, vitals.reason_logged_at = worker.reason, now
            log.warning("worker %s is not usable: %s", worker.url, worker.reason)

    def _change(self, worker: Worker, after: WorkerState) -> None:
        before, worker.state = worker.state, after
        self._metrics.worker_state_changed(before, after)
        level = logging.WARNING if after is WorkerState.DEAD else logging.INFO
        why = f": {worker.reason}" if worker.reason else ""
        log.log(level, "worker %s: %s -> %s%s", worker.url, before, after, why)
        worker.vitals.logged_reason = worker.reason
        if after is WorkerState.DEAD:
            self._on_dead(worker)
        self._rosters.clear()
        if self._workers.get(worker.identity) is worker:
            self._followers.notify(ChangeKind.STATE, worker)

    def _on_dead(self, worker: Worker) -> None:
        """Forget what was known of the process: the next process shares none of it."""
        incarnation, worker.incarnation = worker.incarnation, object()
        worker.pool.forget_idle_limit()
        worker.vitals, worker.occupancy = Vitals(), worker.in_flight
        self._on_death(worker.url, incarnation)

    def describe(self, worker: Worker, infos: Mapping[str, WorkerInfo]) -> None:
        """Note what the probes of ``worker`` found, by format."""
        first = not worker.infos
        changed = infos != worker.infos
        worker.infos = infos
        if changed:
            self._rosters.clear()
            self._update_card(worker)
        self._same_servers.note(worker)
        if first:
            self._log_same_server(worker)
        self._check_weights(worker, first=first)

    def replace_record(self, worker: Worker, record: WorkerRecord, source: CardSource) -> None:
        """Note what is registered of ``worker`` now, and by whom."""
        worker.record, worker.record_source = record, source
        self._rosters.clear()
        self._update_card(worker)

    def _update_card(self, worker: Worker) -> None:
        """Make the card of ``worker`` anew, as one of its sources may say something else."""
        of_record = worker.record_source, recorded(worker.record, worker.address.rank)
        before, worker.card = worker.card, self._cards.build(worker.card, of_record, worker.infos)
        if self._workers.get(worker.identity) is not worker:
            return
        self._card_conflicts.note(worker)  # it may serve another model, with the same card
        if worker.card is not before:
            self._rosters.clear()
            self._followers.notify(ChangeKind.CARD, worker)

    def _log_same_server(self, worker: Worker) -> None:
        others = [other.url for other in worker.other_entries if other.infos]
        if others:
            log.warning(
                "worker %s is the same server as %s: each gets its share of requests, and control calls reach"
                " the server once",
                worker.url,
                ", ".join(others),
            )

    def _check_weights(self, worker: Worker, *, first: bool) -> None:
        least, version = self._min_weight_version, worker.weight_version
        if least is None or version == worker.cordons.allowed_weights:
            return
        if not reaches(version, least):
            known = "is not reported" if version is None else f"is {version}"
            why = f"its weight version {known}, and {least} is wanted"
            return self.cordon(worker, CordonSource.WEIGHTS, why)
        arrived = first or CordonSource.WEIGHTS in worker.cordons
        self.uncordon(worker, CordonSource.WEIGHTS)
        if arrived:
            self.uncordon(worker, CordonSource.OWNER)

    def cordon(self, worker: Worker, source: CordonSource, why: str = "cordoned by its owner") -> None:
        """Give ``worker`` no new requests until ``source`` uncordons it, whatever its probes find."""
        worker.cordons.reasons[source] = why
        if worker.usable or worker.state is WorkerState.CORDONED:
            self.apply_event(worker, WorkerEvent.CORDON, worker.cordons.why)

    def uncordon(self, worker: Worker, source: CordonSource | None = None) -> None:
        """End the cordon of ``source``; None: every cordon, and allow a weight version that is too low."""
        if source is None:
            worker.cordons.allowed_weights = worker.weight_version
            worker.cordons.reasons.clear()
        elif worker.cordons.reasons.pop(source, None) is None:
            return
        if not worker.cordons:
            self.apply_event(worker, WorkerEvent.UNCORDON)
        elif worker.state is WorkerState.CORDONED:
            worker.reason = worker.cordons.why

    def allow_weights(self, worker: Worker, version: str | None) -> None:
        """Allow this weight version of ``worker``, which was uncordoned although it is too low."""
        worker.cordons.allowed_weights = version
        if worker.weight_version == version:
            self.uncordon(worker, CordonSource.WEIGHTS)

    def follow(self) -> AbstractContextManager[Changes]:
        """Return a context that yields a queue of all changes from now on. No follower is waited for."""
        return self._followers.follow()

    # -- leases

    def usable(self, capability: str) -> Sequence[Worker]:
        """Return the workers that can serve ``capability`` now."""
        return self._roster(capability).workers

    def models(self) -> Mapping[str, WorkerInfo]:
        """Return each model that some usable worker serves, with the info of one that does."""
        found: dict[str, WorkerInfo] = {}
        for worker in self._workers.values():
            if worker.usable:
                for info in worker.infos.values():
                    for model in models_of(worker, info) if info.usable else ():
                        found.setdefault(model, info)
        return found

    def lease(
        self,
        capability: str,
        model: str | None,
        excluding: Collection[Worker] = (),
        key: str | None = None,
        longest: tuple[int, int] = UNKNOWN_LENGTH,
    ) -> Worker:
        """Pick a worker, by affinity to ``key`` or else by the policy, and lease it until ``release``.

        It has room for a request that is as long as ``longest``. Raises NoWorker, Overloaded (no worker has
        a free slot), and what ``eligible`` and ``without_room`` raise.
        """
        roster = self._roster(capability)
        if longest[1] > roster.smallest_limit:
            excluding = {*excluding, *roster.without_room(model, longest)}
        workers = candidates(roster.of_model(model), excluding)
        if not workers:
            raise NoWorker("no worker is available at the moment; please try again")
        full = self._without_slot(workers)
        if full:
            workers = [worker for worker in workers if worker not in full]
            if not workers:
                raise Overloaded("all workers are busy at the moment; please try again")
        if key is not None:
            members = roster.members_of(model)
            worker, placement = self._affinity.assign(key, workers, members, full)
            self._metrics.key_assigned(placement)
        else:
            worker = self._policy.pick(workers) if len(workers) > 1 else workers[0]
        worker.in_flight += 1
        worker.occupancy += 1
        if worker.vitals.on_trial and worker.state is WorkerState.READY:
            worker.vitals.ejected_until = FOREVER
            self.apply_event(worker, WorkerEvent.FULL, "it has a trial request after failed replies")
        return worker

    def eligible(
        self, capability: str, model: str | None, excluding: Collection[Worker] = ()
    ) -> Sequence[Worker]:
        """Return the workers among which ``lease`` would choose now, those without a free slot included.

        Raises UnknownModel (the fleet serves several models, but not this one) and InvalidRequest (it serves
        several and none was named).
        """
        return candidates(self._roster(capability).of_model(model), excluding)

    def without_room(
        self, capability: str, model: str | None, longest: tuple[int, int]
    ) -> Collection[Worker]:
        """Return the workers that are too small for a request of this length, usable now or not.

        Raises what ``Roster.without_room`` raises.
        """
        return self._roster(capability).without_room(model, longest)

    def model_for(self, capability: str, model: str | None) -> str | None:
        """Return the model that requests for ``model`` (None: for any) will get; None: it is not known."""
        return self._roster(capability).name_of(model)

    def _without_slot(self, workers: Collection[Worker]) -> Collection[Worker]:
        most = self._most_in_flight
        return () if most is None else {worker for worker in workers if worker.in_flight >= most}

    def free_slots(self, workers: Collection[Worker]) -> int | None:
        """Return how many more leases ``workers`` may have together; None: any number."""
        most = self._most_in_flight
        return None if most is None else sum(max(0, most - worker.in_flight) for worker in workers)

    def call_on_release(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at each ``release`` from now on: there is room for another lease."""
        self._on_release = callback

    def release(self, worker: Worker) -> None:
        """End a lease. A draining worker whose last lease ends leaves the fleet."""
        worker.in_flight -= 1
        worker.occupancy -= 1
        if self._on_release is not None:
            self._on_release()
        if not worker.in_flight and worker.state is WorkerState.DRAINING:
            self._leave(worker)

    def _roster(self, capability: str) -> Roster:
        roster = self._rosters.get(capability)
        if roster is None:
            roster = self._rosters[capability] = roster_of(capability, self._workers.values())
        return roster
