"""Which workers are cordoned through the gateway, and why: a replicated last-writer-wins map.

Owns: the map, the spelling of its reasons, and the cordons of the fleet that follow from it. Must never
enter: a dialect, HTTP, sending anything (``replication`` does).

A key is a worker's URL and a reason, a value is a ``Versioned``. This is the LWW-element-set of Shapiro et
al., "A comprehensive study of Convergent and Commutative Replicated Data Types" (INRIA RR-7506, 2011),
section 3.3.3: replicas that merged the same entries are equal, in whatever order and how often these arrived.
A removed reason stays in the map for a while (a tombstone), against entries that arrive late. A URL needs no
worker: its worker may be a member of another gateway, or not registered yet.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource
from gateway.fleet.worker import Worker
from gateway.stores.versioned import Updates, Versioned

#: Reasons of one worker, as they are stored.
Reasons = frozenset[str]
#: By URL and by reason: whether the reason is to be present.
Changes = Mapping[str, Mapping[str, bool]]

#: Cordoned by its owner over the API.
BY_OWNER = "held"
#: A worker of --worker that was removed over the API. It is sent to the other processes and never stored, as
#: a gateway that is started again has its --worker again.
DISMISSED = "removed"
_PAUSED, _WEIGHTS_ALLOWED = "paused:", "waived:"

#: Tombstones that are kept: so many, and more for each worker. The oldest are dropped first.
TOMBSTONES, TOMBSTONES_PER_WORKER = 1024, 4
_NEVER = Versioned(-1, "", present=False)


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
    """The map of one process. Its entries are applied to the workers of ``fleet``."""

    def __init__(self, fleet: Fleet, clock: Callable[[], int] = microseconds) -> None:
        self._fleet = fleet
        self._clock = clock
        self._writer = secrets.token_hex(4)
        self._latest = 0
        self._entries: dict[str, dict[str, Versioned]] = {}
        #: Keys of the removed reasons, the last removed one at the end.
        self._tombstones: OrderedDict[tuple[str, str], None] = OrderedDict()
        #: Set once all entries of a store were merged.
        self.loaded = asyncio.Event()

    @property
    def all(self) -> Updates:
        """All entries, tombstones included."""
        return {url: dict(reasons) for url, reasons in self._entries.items()}

    def of(self, url: str) -> Reasons:
        """Return the reasons that are present for one worker."""
        return frozenset(reason for reason, entry in self._entries.get(url, {}).items() if entry.present)

    def entry(self, url: str, reason: str) -> Versioned | None:
        """Return the entry of a key; None if there is none, or its tombstone was dropped."""
        return self._entries.get(url, {}).get(reason)

    def worker(self, url: str) -> Worker | None:
        """Return the member of the fleet with exactly this URL."""
        worker = self._fleet.find(url)
        return worker if worker is not None and worker.url == url else None

    def write(self, changes: Changes) -> Updates:
        """Write ``changes`` as the latest entries of this process; return them for all other replicas."""
        now = max(self._clock(), self._latest + 1)
        updates = {
            url: {reason: Versioned(now, self._writer, present) for reason, present in reasons.items()}
            for url, reasons in changes.items()
        }
        self.merge(updates)
        return updates

    def merge(self, updates: Updates) -> Updates:
        """Merge entries of another replica; return those that were later than the ones known here."""
        news: dict[str, Mapping[str, Versioned]] = {}
        for url, entries in updates.items():
            later = {
                reason: entry
                for reason, entry in entries.items()
                if entry > (self.entry(url, reason) or _NEVER)
            }
            if not later:
                continue
            news[url] = later
            for reason, entry in later.items():
                self._set(url, reason, entry)
            if (worker := self.worker(url)) is not None:
                self._apply(worker, later)
        self._drop_tombstones()
        return news

    def merge_store(self, entries: Updates) -> None:
        """Merge all entries of a store. An undated one is older than any other."""
        self.merge(entries)
        self.loaded.set()

    def merge_store_change(self, url: str, entries: Mapping[str, Versioned]) -> None:
        """Merge a change in a store. An undated one was made just now, by somebody who knows no order."""
        present, now = self.of(url), max(self._clock(), self._latest + 1)
        dated = {
            reason: entry if entry.dated else entry._replace(timestamp=now)
            for reason, entry in entries.items()
            if entry.dated or entry.present != (reason in present)
        }
        self.merge({url: dated})

    def apply_to(self, worker: Worker) -> None:
        """Apply what is known of ``worker``, which is a member from now on."""
        self._apply(worker, {r: e for r, e in self._entries.get(worker.url, {}).items() if e.present})

    def _set(self, url: str, reason: str, entry: Versioned) -> None:
        self._latest = max(self._latest, entry.timestamp)
        self._entries.setdefault(url, {})[reason] = entry
        self._tombstones.pop((url, reason), None)
        if not entry.present:
            self._tombstones[url, reason] = None

    def _drop_tombstones(self) -> None:
        if len(self._tombstones) <= TOMBSTONES:
            return
        most = TOMBSTONES + TOMBSTONES_PER_WORKER * len(self._fleet.workers)
        while len(self._tombstones) > most:
            (url, reason), _ = self._tombstones.popitem(last=False)
            del self._entries[url][reason]
            if not self._entries[url]:
                del self._entries[url]

    def _apply(self, worker: Worker, entries: Mapping[str, Versioned]) -> None:
        """Cordon or uncordon ``worker`` according to these entries, which are new."""
        for reason, entry in entries.items():
            if reason == BY_OWNER and entry.present:
                self._fleet.cordon(worker, CordonSource.OWNER, "cordoned by its owner")
            elif reason == BY_OWNER and not worker.record.cordoned:
                self._fleet.uncordon(worker, CordonSource.OWNER)
            elif reason.startswith(_WEIGHTS_ALLOWED) and entry.present:
                self._fleet.allow_weights(worker, reason.removeprefix(_WEIGHTS_ALLOWED) or None)
        if not any(reason.startswith(_PAUSED) for reason in entries):
            return
        kinds = {reason.split(":")[1] for reason in self.of(worker.url) if reason.startswith(_PAUSED)}
        if kinds:
            why = f"paused through the gateway: {', '.join(sorted(kinds))}"
            self._fleet.cordon(worker, CordonSource.PAUSED, why)
        else:
            self._fleet.uncordon(worker, CordonSource.PAUSED)
