"""Records in etcd: any number of gateways share one fleet, on any number of machines.

Owns: writing, leases and their renewal, and trying again after an outage. Must never enter: HTTP, what a
watch is told.

While no member can be reached the fleet stays as it is known. Afterwards the watch goes on where it broke
off. A lease that ran out in an outage was lost with its record: whoever keeps it registers again. A record
that somebody else took away stays away as long as its lease lasts: its keeper does not bring it back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.stores.backoff import Backoff, BackoffDelays
from gateway.stores.base import StoreUnavailable
from gateway.stores.etcd.client import EtcdAccess, EtcdClient, within
from gateway.stores.etcd.keys import Keys
from gateway.stores.etcd.watch import PlaceLost, WatchReader
from gateway.stores.etcd.wire import EtcdError
from gateway.stores.feeds import Emit
from gateway.stores.record import WorkerRecord
from gateway.stores.renewals import Renewals
from gateway.stores.versioned import Updates, Versioned
from gateway.stores.watched import WatchedStore

log = logging.getLogger(__name__)

#: Seconds for a write, however many calls and endpoints it takes: whoever waits for it may wait for one.
PATIENCE = 0.9
#: Between two tries to watch.
PAUSES = BackoffDelays(first=0.05, longest=2.0)

_Reply = TypeVar("_Reply")

#: Changes in one transaction; etcd takes 128, unless it was told otherwise.
_MOST_CHANGES = 100
#: Seconds for which a tombstone is kept at least; twice that at most.
TOMBSTONE_SECONDS = 24 * 3600
_LEASE_NOT_FOUND = 5
_LEASE_EXISTS = 9


@dataclass(slots=True, eq=False)
class _Kept:
    """A record under a lease of ``seconds``; ``id`` is the lease's."""

    record: WorkerRecord
    seconds: int
    id: str = ""


class EtcdStore(WatchedStore):
    """See Store. ``prefix`` is of all keys of this deployment; ``patience`` in seconds, for one write."""

    writable = True
    keeps_cordons = True

    def __init__(self, access: EtcdAccess, prefix: str, *, patience: float = PATIENCE) -> None:
        super().__init__(f"etcd at {', '.join(access.endpoints)}")
        self._client = EtcdClient(access)
        self._keys = Keys(prefix)
        self._patience = patience
        self._renewals = Renewals()
        self._kept: dict[str, _Kept] = {}
        #: The lease of new tombstones, and until when it is used for them (monotonic time).
        self._tombstone_lease, self._tombstone_lease_ends = "", float("-inf")

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """See Store. A lease is of whole seconds, rounded up; etcd makes very short ones longer."""
        if ttl is None:
            await self._written(self._replace(record))
            if kept := self._kept.get(record.url):
                kept.record = record
            return
        kept = _Kept(record, max(1, math.ceil(ttl)))
        await self._written(self._register(kept, within(self._patience)))
        self._kept[record.url] = kept
        await self._renewals.start(record.url, kept.seconds, lambda: self._written(self._renew(kept)))

    async def delete(self, url: str) -> bool:
        """See Store."""
        kept = self._kept.pop(url, None)
        await self._renewals.stop(url)
        until = within(self._patience)
        key = {"key": self._keys.of(url)}
        reply = await self._written(self._client.call("/v3/kv/deleterange", key, until=until))
        if kept is not None:
            # Should a renewal that was given up reach etcd late: without its lease it can write nothing.
            await self._revoke(kept, until)
        return int(reply.get("deleted", 0)) > 0

    async def write_cordons(self, updates: Updates) -> None:
        """See Store."""
        until = within(self._patience)
        entries = [
            (url, reason, entry) for url, by_reason in updates.items() for reason, entry in by_reason.items()
        ]
        only_present = all(entry.present for _, _, entry in entries)
        lease = "" if only_present else await self._written(self._tombstone_lease_id(until))
        changes = [self._change(url, reason, entry, lease) for url, reason, entry in entries]
        for start in range(0, len(changes), _MOST_CHANGES):
            await self._written(self._change_some(changes[start : start + _MOST_CHANGES], until))

    async def _change_some(self, changes: Sequence[Mapping[str, Any]], until: float) -> None:
        try:
            await self._client.call("/v3/kv/txn", {"success": changes}, until=until)
        except EtcdError as error:
            if error.code == _LEASE_NOT_FOUND:  # the cluster's data were replaced, and the lease with them
                self._tombstone_lease_ends = float("-inf")
            raise

    def _change(self, url: str, reason: str, entry: Versioned, lease: str) -> dict[str, Any]:
        """Return the transaction that writes ``entry``, unless etcd has a later one. Of the two keys of an
        entry only one exists, except where a gateway that knows no versions has written."""
        present, tombstone = (self._keys.of_cordon(url, reason, present=each) for each in (True, False))
        written, deleted = (present, tombstone) if entry.present else (tombstone, present)
        put = {"key": written, "value": self._keys.cordon_value(entry)}
        if not entry.present:
            put["lease"] = lease
        steps: list[dict[str, Any]] = [{"request_put": put}, {"request_delete_range": {"key": deleted}}]
        bound = self._keys.cordon_bound(entry)
        for key in (written, deleted):
            later = {"key": key, "target": "VALUE", "result": "GREATER", "value": bound}
            steps = [{"request_txn": {"compare": [later], "success": [], "failure": steps}}]
        return steps[0]

    async def _tombstone_lease_id(self, until: float) -> str:
        """Return the lease of tombstones: one for all of a day, as etcd need not have thousands of leases."""
        now = time.monotonic()
        if now >= self._tombstone_lease_ends:
            lease = {"ID": str(random.getrandbits(62) + 1), "TTL": str(2 * TOMBSTONE_SECONDS)}
            await self._client.call("/v3/lease/grant", lease, until=until)
            self._tombstone_lease, self._tombstone_lease_ends = lease["ID"], now + TOMBSTONE_SECONDS
        return self._tombstone_lease

    async def close(self) -> None:
        """See Store."""
        await super().close()
        await self._renewals.close()

    async def _feed(self, emit: Emit) -> None:
        backoff = Backoff(PAUSES, random.Random())

        def in_touch() -> None:
            self._status.up()
            backoff.reset()

        reader = WatchReader(self._client, self._keys, in_touch)
        while True:
            try:
                await reader.read(emit)
            except PlaceLost as lost:
                log.info("all records are read from etcd again: %s", lost)
                backoff.reset()
            except EtcdError as error:
                self._status.down(str(error))
            await asyncio.sleep(backoff.failed())

    async def _replace(self, record: WorkerRecord) -> dict[str, Any]:
        """Write ``record``, under the lease that the one before has, if any."""
        key, value = self._keys.of(record.url), self._keys.value(record)
        there = {"key": key, "target": "CREATE", "result": "GREATER", "create_revision": "0"}
        change = {
            "compare": [there],
            "success": [{"request_put": {"key": key, "value": value, "ignore_lease": True}}],
            "failure": [{"request_put": {"key": key, "value": value}}],
        }
        return await self._client.call("/v3/kv/txn", change, until=within(self._patience))

    async def _register(self, kept: _Kept, until: float) -> None:
        """Write a record under a lease of its own. The id is ours, so that it is known before the lease."""
        kept.id = str(random.getrandbits(62) + 1)
        try:
            await self._client.call("/v3/lease/grant", {"ID": kept.id, "TTL": str(kept.seconds)}, until=until)
        except EtcdError as error:
            if error.code != _LEASE_EXISTS:  # granted by a member whose answer came too late
                raise
        entry = {"key": self._keys.of(kept.record.url), "value": self._keys.value(kept.record)}
        await self._client.call("/v3/kv/put", {**entry, "lease": kept.id}, until=until)

    async def _renew(self, kept: _Kept) -> bool:
        until = within(max(self._patience, kept.seconds / 3))
        reply = await self._client.call("/v3/lease/keepalive", {"ID": kept.id}, until=until)
        if int(reply.get("result", {}).get("TTL", 0)) <= 0:
            log.warning("the lease of %s was lost; registering again", kept.record.url)
            await self._register(kept, until)
        return True

    @staticmethod
    async def _written(write: Coroutine[Any, Any, _Reply]) -> _Reply:
        try:
            return await write
        except EtcdError as error:
            raise StoreUnavailable(f"etcd: {error}") from error

    async def _revoke(self, kept: _Kept, until: float) -> None:
        try:
            await self._client.call("/v3/lease/revoke", {"ID": kept.id}, until=until)
        except EtcdError as error:
            if error.code != _LEASE_NOT_FOUND:
                log.info("the lease of %s runs out by itself: %s", kept.record.url, error)
