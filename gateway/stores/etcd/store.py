"""The store in etcd: any number of gateways, on any number of machines, share one fleet.

Owns: writes, TTLs and their renewal, and trying again after an outage. Must never enter: HTTP, what a watch
yields.

A record with a TTL is attached to an etcd lease. While no member of the cluster can be reached the fleet
stays as it is known; afterwards the watch continues where it broke off. If a lease expires during an outage,
its record is gone, and the gateway that renews it registers it again. If somebody else deletes the record, it
is not registered again as long as its lease lasts.
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
from gateway.stores.etcd.watch import PositionLost, WatchReader
from gateway.stores.etcd.wire import EtcdError
from gateway.stores.feeds import Emit
from gateway.stores.last_writer_wins.map import Key, Updates, Versioned
from gateway.stores.record import WorkerRecord
from gateway.stores.renewals import Renewals
from gateway.stores.spellings import under_all_spellings
from gateway.stores.watched import WatchedStore
from gateway.upstream.address import spellings_of

log = logging.getLogger(__name__)

#: Seconds for one write, whatever the number of calls and endpoints: a caller waits for at most one second.
WRITE_TIMEOUT = 0.9
#: The delays before a watch begins again.
DELAYS = BackoffDelays(first=0.05, longest=2.0)

_Reply = TypeVar("_Reply")

#: Operations in one transaction; etcd's limit is 128 by default (--max-txn-ops).
_MAX_OPERATIONS = 100
#: Seconds for which a tombstone is kept at least; twice that at most.
TOMBSTONE_SECONDS = 24 * 3600
#: gRPC status codes: NOT_FOUND and FAILED_PRECONDITION.
_LEASE_NOT_FOUND = 5
_LEASE_EXISTS = 9


@dataclass(slots=True, eq=False)
class _LeasedRecord:
    """A record that this store renews: its TTL in seconds, and the id of its etcd lease."""

    record: WorkerRecord
    ttl: int
    lease: str = ""


class EtcdStore(WatchedStore):
    """A store in etcd. ``prefix`` starts all its keys; ``write_timeout`` is for one write, in seconds."""

    writable = True
    keeps_cordons = True

    def __init__(self, access: EtcdAccess, prefix: str, *, write_timeout: float = WRITE_TIMEOUT) -> None:
        super().__init__(f"etcd at {', '.join(access.endpoints)}")
        self._client = EtcdClient(access)
        self._keys = Keys(prefix)
        self._write_timeout = write_timeout
        self._renewals = Renewals()
        self._leased: dict[str, _LeasedRecord] = {}
        #: The entries in etcd of cordons that gateways of an older version wrote under other spellings.
        self._other_spellings: set[Key] = set()
        #: The lease of new tombstones, and until when it is used for them (monotonic time).
        self._tombstone_lease, self._tombstone_lease_until = "", float("-inf")

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """See Store. The TTL is rounded up to whole seconds; etcd may prolong very short ones."""
        if ttl is None:
            await self._translated(self._replace(record))
            if leased := self._leased.get(record.url):
                leased.record = record
            return
        leased = _LeasedRecord(record, max(1, math.ceil(ttl)))
        await self._translated(self._register(leased, within(self._write_timeout)))
        self._leased[record.url] = leased
        await self._renewals.start(record.url, leased.ttl, lambda: self._translated(self._renew(leased)))

    async def delete(self, url: str) -> bool:
        """See Store."""
        leased = [self._leased.pop(each) for each in spellings_of(url, self._leased)]
        for each in leased:
            await self._renewals.stop(each.record.url)
        until = within(self._write_timeout)
        deleted = await self._translated(self._delete(url, until))
        for each in leased:
            # A renewal that timed out may reach etcd later: without its lease it cannot write the record.
            await self._revoke(each, until)
        return deleted

    async def _delete(self, url: str, until: float) -> bool:
        """Delete the keys of all spellings of ``url``; return False if there are none."""
        keys = {**self._keys.records, "keys_only": True}
        listed = await self._client.call("/v3/kv/range", keys, until=until)
        urls = [self._keys.url(self._keys.decode(pair)[0]) for pair in listed.get("kvs", ())]
        deleted = 0
        for each in spellings_of(url, urls):
            reply = await self._client.call("/v3/kv/deleterange", {"key": self._keys.of(each)}, until=until)
            deleted += int(reply.get("deleted", 0))
        return deleted > 0

    async def write_cordons(self, updates: Updates) -> None:
        """See Store."""
        until = within(self._write_timeout)
        lease = ""
        if not all(entry.present for entry in updates.values()):
            lease = await self._translated(self._lease_for_tombstones(until))
        every = under_all_spellings(updates, self._other_spellings)
        changes = [self._cordon_change(key, entry, lease) for key, entry in every.items()]
        for start in range(0, len(changes), _MAX_OPERATIONS):
            await self._translated(self._transaction(changes[start : start + _MAX_OPERATIONS], until))

    async def _transaction(self, changes: Sequence[Mapping[str, Any]], until: float) -> None:
        try:
            await self._client.call("/v3/kv/txn", {"success": changes}, until=until)
        except EtcdError as error:
            if error.code == _LEASE_NOT_FOUND:  # the data of the cluster was replaced
                self._tombstone_lease_until = float("-inf")
            raise

    def _cordon_change(self, cordon: Key, entry: Versioned, lease: str) -> dict[str, Any]:
        """Return the operation that writes ``entry`` unless etcd has a later one of the same reason.

        Of the two keys of a reason only one exists; both can exist if a gateway older than versioned entries
        wrote one.
        """
        key = self._keys.of_cordon(cordon, present=entry.present)
        other = self._keys.of_cordon(cordon, present=not entry.present)
        put = {"key": key, "value": self._keys.cordon_value(entry)}
        if not entry.present:
            put["lease"] = lease
        change: dict[str, Any] = {"request_put": put}
        operations = [change, {"request_delete_range": {"key": other}}]
        for each in (key, other):
            later = {
                "key": each,
                "target": "VALUE",
                "result": "GREATER",
                "value": self._keys.cordon_bound(entry),
            }
            operations = [{"request_txn": {"compare": [later], "success": [], "failure": operations}}]
        return operations[0]

    async def _lease_for_tombstones(self, until: float) -> str:
        """Return the lease of tombstones: one for a whole day, as each lease costs etcd something."""
        now = time.monotonic()
        if now >= self._tombstone_lease_until:
            lease = {"ID": str(random.getrandbits(62) + 1), "TTL": str(2 * TOMBSTONE_SECONDS)}
            await self._client.call("/v3/lease/grant", lease, until=until)
            self._tombstone_lease, self._tombstone_lease_until = lease["ID"], now + TOMBSTONE_SECONDS
        return self._tombstone_lease

    async def close(self) -> None:
        """See Store."""
        await super().close()
        await self._renewals.close()

    async def _feed(self, emit: Emit) -> None:
        backoff = Backoff(DELAYS, random.Random())

        def connected() -> None:
            self._status.connected()
            backoff.reset()

        reader = WatchReader(self._client, self._keys, connected, self._other_spellings)
        while True:
            try:
                await reader.read(emit)
            except PositionLost as lost:
                log.info("all records are read from etcd again: %s", lost)
                backoff.reset()
            except EtcdError as error:
                self._status.disconnected(str(error))
            await asyncio.sleep(backoff.failed())

    async def _replace(self, record: WorkerRecord) -> dict[str, Any]:
        """Write ``record``, attached to the lease of the previous record of its URL, if any."""
        key, value = self._keys.of(record.url), self._keys.value(record)
        exists = {"key": key, "target": "CREATE", "result": "GREATER", "create_revision": "0"}
        change = {
            "compare": [exists],
            "success": [{"request_put": {"key": key, "value": value, "ignore_lease": True}}],
            "failure": [{"request_put": {"key": key, "value": value}}],
        }
        return await self._client.call("/v3/kv/txn", change, until=within(self._write_timeout))

    async def _register(self, leased: _LeasedRecord, until: float) -> None:
        """Write a record with a new lease. This store chooses the lease's id, so that it can be revoked even
        if the reply to the grant is lost."""
        leased.lease = str(random.getrandbits(62) + 1)
        grant = {"ID": leased.lease, "TTL": str(leased.ttl)}
        try:
            await self._client.call("/v3/lease/grant", grant, until=until)
        except EtcdError as error:
            if error.code != _LEASE_EXISTS:  # another member granted it, but answered too late
                raise
        put = {"key": self._keys.of(leased.record.url), "value": self._keys.value(leased.record)}
        await self._client.call("/v3/kv/put", {**put, "lease": leased.lease}, until=until)

    async def _renew(self, leased: _LeasedRecord) -> bool:
        until = within(max(self._write_timeout, leased.ttl / 3))
        reply = await self._client.call("/v3/lease/keepalive", {"ID": leased.lease}, until=until)
        if int(reply.get("result", {}).get("TTL", 0)) <= 0:
            log.warning("the lease of %s has expired; registering the worker again", leased.record.url)
            await self._register(leased, until)
        return True

    async def _revoke(self, leased: _LeasedRecord, until: float) -> None:
        try:
            await self._client.call("/v3/lease/revoke", {"ID": leased.lease}, until=until)
        except EtcdError as error:
            if error.code != _LEASE_NOT_FOUND:
                log.info("the lease of %s expires by itself: %s", leased.record.url, error)

    @staticmethod
    async def _translated(write: Coroutine[Any, Any, _Reply]) -> _Reply:
        try:
            return await write
        except EtcdError as error:
            raise StoreUnavailable(f"etcd: {error}") from error
