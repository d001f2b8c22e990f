"""Which workers are cordoned through the gateway, and why: the same in all its processes, and in all gateways
on its store.

Owns: the reasons and their spelling, the cordons of the fleet that follow from them, and which events of a
worker's life remove them. Must never enter: which of two entries counts, sending anything, HTTP, a dialect.

A worker is paused in kinds that are independent of each other: one whose generation is paused and whose
memory was released serves again when both are undone. A kind has parts, as memory is released and resumed in
parts.

A record can go while its engine runs on: a lease runs out because its keeper hung, or a pod is not ready for
a moment. An engine that was paused is still paused when it is back, so its cordons wait for it. It is another
process if its owner says so (``WorkerRecord.incarnation``), and is taken for another one after an hour.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource
from gateway.fleet.worker import Worker
from gateway.fleet.worker_cordons import NO_WEIGHTS
from gateway.stores.base import Store
from gateway.stores.last_writer_wins.map import Changes, LastWriterWinsMap, Updates
from gateway.stores.last_writer_wins.replication import Replication, no_peers
from gateway.stores.record import WorkerRecord
from gateway.stores.spellings import by_identity
from gateway.upstream.address import identity_of

#: Reasons of one worker, as they are stored.
Reasons = frozenset[str]

#: Cordoned by its owner over the API.
BY_OWNER = "held"
#: A worker of --worker that was removed over the API. It is sent to the other processes and never stored, as
#: a gateway that is started again has its --worker again.
DISMISSED = "removed"
_PAUSED, _WEIGHTS_ALLOWED = "paused:", "waived:"

#: Tombstones that are kept: so many, and more for each worker.
TOMBSTONES, TOMBSTONES_PER_WORKER = 1024, 4
#: How long cordons wait for a worker that departed, in seconds, and for how many workers; the first that
#: departed is dropped first.
MAX_WAIT_SECONDS, MAX_DEPARTED = 3600.0, 1024


def paused(kind: str, part: str) -> str:
    """Return the reason of a worker whose ``part`` of this kind is paused. A kind has no colon in it."""
    return f"{_PAUSED}{kind}:{part}"


def weights_allowed(version: str | None) -> str:
    """Return the reason of a worker that was uncordoned although this weight version is too low. It is the
    one reason that does not cordon. None: the worker reports no version."""
    return _WEIGHTS_ALLOWED + ("" if version is None else version)


def paused_parts(reasons: Iterable[str], kind: str) -> Reasons:
    """Return the parts of ``kind`` that are paused according to ``reasons``."""
    prefix = paused(kind, "")
    return frozenset(reason.removeprefix(prefix) for reason in reasons if reason.startswith(prefix))


def microseconds() -> int:
    """Return the time of the host's clock, as an entry written during an outage or before a restart must be
    older than one written after it, in any process. Where hosts' clocks differ, entries of writers that have
    not heard of each other may be ordered wrongly within that difference."""
    return time.time_ns() // 1000


class Cordons:
    """The cordons of one process, replicated to ``store`` and to its peers (see Replication)."""

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        send_to_peers: Callable[[Updates], Awaitable[None]] = no_peers,
    ) -> None:
        self._fleet = fleet
        self._entries = LastWriterWinsMap(
            lambda: TOMBSTONES + TOMBSTONES_PER_WORKER * len(fleet.workers),
            secrets.token_hex(4),
            microseconds,
        )
        self._replication = Replication(self._entries, store, send_to_peers, lambda key: key[1] != DISMISSED)
        #: The reasons that are present, by identity of the worker, as in all of ``_entries``.
        self._reasons: dict[str, Reasons] = {}
        #: By identity of a worker that departed: its incarnation, and the end of its wait.
        self._departed: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        #: Set once all entries of a store were merged.
        self.loaded = asyncio.Event()

    @property
    def entries(self) -> Updates:
        """All entries, tombstones included."""
        return self._entries.snapshot()

    def of(self, url: str) -> Reasons:
        """Return the reasons that are present for the worker with this URL."""
        return self._reasons.get(identity_of(url), frozenset())

    async def write(self, changes: Changes) -> None:
        """Apply ``changes`` here, and return when the other replicas have them; see ``Replication.send``."""
        await self._replication.send(self._edit(changes))

    def receive(self, updates: Updates) -> list[str]:
        """Merge updates of another process; return the URLs of workers that were dismissed by it."""
        later = self._apply(self._entries.merge(updates))
        for url in dict.fromkeys(url for url, _ in later):
            waiting = self.of(url) - {DISMISSED} and self._fleet.at(url) is None
            if waiting and url not in self._departed:
                self._depart(url)
        self._replication.store_in_background(later)
        dismissed = (url for (url, reason), entry in later.items() if reason == DISMISSED and entry.present)
        return [url for url in dismissed if self._fleet.at(url)]

    def merge_store(self, entries: Updates) -> None:
        """Merge all entries of a store. An undated one is older than any other."""
        self._apply(self._entries.merge(by_identity(entries)))
        self.loaded.set()

    def merge_store_change(self, entries: Updates) -> None:
        """Merge a change in a store. An undated one was made just now, by somebody who knows no order."""
        self._apply(self._entries.merge_change(by_identity(entries)))

    async def close(self) -> None:
        """Send nothing any more."""
        for _, end in self._departed.values():
            end.cancel()
        await self._replication.close()

    # -- pauses

    async def pause(
        self, workers: Collection[Worker], kind: str, parts: Collection[str]
    ) -> Mapping[Worker, Reasons]:
        """Note that ``parts`` of ``kind`` are paused at ``workers``; return which of them were not before, by
        worker. Returns as ``write`` does."""
        added = {worker: frozenset(parts) - paused_parts(self.of(worker.url), kind) for worker in workers}
        await self.write({(worker.url, paused(kind, part)): True for worker in workers for part in parts})
        return added

    async def resume(self, worker: Worker, kind: str, parts: Collection[str], *, every: bool = False) -> None:
        """Note that ``parts`` of ``kind``, and with ``every`` all other parts, are not paused any more.

        It is written even for parts that are not known to be paused here: another process or gateway may have
        paused them a moment ago. Returns as ``write`` does.
        """
        resumed = {*parts, *(paused_parts(self.of(worker.url), kind) if every else ())}
        if resumed:
            await self.write({(worker.url, paused(kind, part)): False for part in resumed})

    # -- events in the life of a worker

    def remove_all(self, url: str, *, keep_owner: bool = False) -> None:
        """Remove every cordon of ``url``: its worker was dismissed, or is another process from now on. With
        ``keep_owner`` the process that comes next is cordoned by its owner like the one before."""
        kept = {DISMISSED, BY_OWNER} if keep_owner else {DISMISSED}
        if not keep_owner:
            self._end_wait(url)
        if reasons := self.of(url) - kept:
            self._replication.send_in_background(self._edit({(url, reason): False for reason in reasons}))

    def on_unreachable(self, worker: Worker) -> None:
        """Remove the cordons of a process that has ended, as nothing listens at its URL.

        The next one is neither paused, nor allowed weights that are too old.
        """
        worker.cordons.allowed_weights = NO_WEIGHTS
        self.remove_all(worker.url, keep_owner=True)

    def on_record_removed(self, record: WorkerRecord) -> bool:
        """Note the departure of a worker. Return True if it has cordons, which wait for it to come back."""
        if not self.of(record.url):
            return False
        self._depart(record.url, record.incarnation)
        return True

    def on_worker_added(self, record: WorkerRecord) -> None:
        """Remove the cordons of ``record.url`` if another process than the departed one is there now."""
        if record.succeeds(self._end_wait(record.url)):
            self.remove_all(record.url)

    def apply_to(self, worker: Worker) -> None:
        """Apply what is known of ``worker``, which is a member from now on."""
        for reason in self.of(worker.url):
            self._apply_reason(worker, reason, present=True)

    def _depart(self, url: str, incarnation: str = "") -> None:
        url = identity_of(url)
        self._end_wait(url)
        end = asyncio.get_running_loop().call_later(MAX_WAIT_SECONDS, self.remove_all, url)
        self._departed[url] = (incarnation, end)
        if len(self._departed) > MAX_DEPARTED:
            self.remove_all(next(iter(self._departed)))

    def _end_wait(self, url: str) -> str:
        """Return the incarnation that departed; "": none did, or it is not known."""
        if (departed := self._departed.pop(identity_of(url), None)) is None:
            return ""
        departed[1].cancel()
        return departed[0]

    # -- entries

    def _edit(self, changes: Changes) -> Updates:
        by_worker = {(identity_of(url), reason): present for (url, reason), present in changes.items()}
        return self._apply(self._entries.edit(by_worker))

    def _apply(self, later: Updates) -> Updates:
        """Apply new entries to the workers of the fleet; return them."""
        for (url, reason), entry in later.items():
            reasons = self.of(url) | {reason} if entry.present else self.of(url) - {reason}
            if reasons:
                self._reasons[url] = reasons
            else:
                self._reasons.pop(url, None)
        for (url, reason), entry in later.items():
            if (worker := self._fleet.at(url)) is not None:
                self._apply_reason(worker, reason, present=entry.present)
        return later

    def _apply_reason(self, worker: Worker, reason: str, *, present: bool) -> None:
        if reason == BY_OWNER and present:
            self._fleet.cordon(worker, CordonSource.OWNER)
        elif reason == BY_OWNER and not worker.record.cordoned:
            self._fleet.uncordon(worker, CordonSource.OWNER)
        elif reason.startswith(_WEIGHTS_ALLOWED) and present:
            self._fleet.allow_weights(worker, reason.removeprefix(_WEIGHTS_ALLOWED) or None)
        elif reason.startswith(_PAUSED):
            kinds = {each.split(":")[1] for each in self.of(worker.url) if each.startswith(_PAUSED)}
            if kinds:
                why = f"paused through the gateway: {', '.join(sorted(kinds))}"
                self._fleet.cordon(worker, CordonSource.PAUSED, why)
            else:
                self._fleet.uncordon(worker, CordonSource.PAUSED)
