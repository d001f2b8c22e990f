"""Reading the records from etcd: a list, then a watch that continues from it.

Owns: the position in etcd's history, and noticing that a watch was cut off or lags behind. Must never enter:
writing, how often to try again.

The position is a revision. etcd keeps all changes since the last compaction, so a watch that broke off
continues after the last change it saw, and misses nothing. When those revisions are compacted, or do not
exist because the data of the cluster was replaced, all records are listed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset
from gateway.stores.etcd.client import EtcdClient, within
from gateway.stores.etcd.keys import Keys
from gateway.stores.etcd.wire import EtcdError, EtcdUnreachable
from gateway.stores.feeds import Emit
from gateway.stores.last_writer_wins.map import Key, Versioned, undated
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import identity_of

log = logging.getLogger(__name__)

#: Seconds between two checks of the member that serves the watch, and for the reply to each. A watch sends
#: nothing while nothing changes, so its silence proves nothing.
CHECK_EVERY, CHECK_TIMEOUT = 1.0, 2.0
#: Seconds for a list of all records, and for the head of a watch's reply.
LIST_TIMEOUT, OPEN_TIMEOUT = 5.0, 2.0


class PositionLost(Exception):
    """A loss of changes, after which all records must be listed again; the message says why."""


class WatchReader:
    """A reader of the records below ``keys`` for one watch. It calls ``connected`` when a watch has begun.

    It adds to ``other_spellings`` the cordons whose URL is not in its normal spelling.
    """

    def __init__(
        self, client: EtcdClient, keys: Keys, connected: Callable[[], None], other_spellings: set[Key]
    ) -> None:
        self._client = client
        self._keys = keys
        self._connected = connected
        self._other_spellings = other_spellings
        self._cluster = ""
        #: The first revision not seen yet; 0: the position is not known.
        self._next = 0
        self._records: dict[str, WorkerRecord] = {}
        #: The values of the key of each entry (True) and of its tombstone (False).
        self._cordons: dict[Key, dict[bool, str]] = {}
        #: The last revision of each key, also of those that contain no valid record.
        self._revisions: dict[bytes, int] = {}

    async def read(self, emit: Emit) -> None:
        """Emit changes until something fails. Raises EtcdError, and PositionLost."""
        if not self._next:
            await emit(await self._list())
        endpoint = self._client.endpoint
        watch = {"create_request": {**self._keys.all, "start_revision": str(self._next)}}
        try:
            async with (
                self._client.stream(endpoint, "/v3/watch", watch, until=within(OPEN_TIMEOUT)) as messages,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(self._check(endpoint))
                async for message in messages:
                    for change in self._parse(message):
                        await emit(change)
        except BaseExceptionGroup as failures:
            for failure in failures.exceptions:
                if isinstance(failure, EtcdError | PositionLost):
                    raise failure from failures
            raise

    async def _list(self) -> Reset:
        reply = await self._client.call("/v3/kv/range", self._keys.all, until=within(LIST_TIMEOUT))
        header = reply.get("header", {})
        self._revisions.clear()
        self._records.clear()
        self._cordons.clear()
        for pair in reply.get("kvs", ()):
            for change in self._put(pair):
                assert isinstance(change, Put | CordonsChanged), "nothing was known before"
        self._cluster = header.get("cluster_id", "")
        self._next = int(header.get("revision", 0)) + 1
        cordons = {key: _entry(values) for key, values in self._cordons.items()}
        return Reset(dict(self._records), {key: entry for key, entry in cordons.items() if entry is not None})

    def _parse(self, message: Mapping[str, Any]) -> Sequence[Change]:
        try:
            return list(self._changes(message))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._next = 0
            raise EtcdUnreachable(f"a message of the watch is invalid: {error!r}") from error

    def _changes(self, message: Mapping[str, Any]) -> Iterator[Change]:
        header = message.get("header", {})
        if message.get("compact_revision"):
            raise self._lost("the history since then was compacted")
        if message.get("canceled"):
            raise EtcdUnreachable("the watch was cancelled without a reason")
        if message.get("created"):
            if header.get("cluster_id") != self._cluster or int(header.get("revision", 0)) < self._next - 1:
                raise self._lost("the data of the cluster was replaced")
            self._connected()
        for event in message.get("events", ()):
            pair = event["kv"]
            if event.get("type") == "DELETE":
                key, _ = self._keys.decode(pair)
                self._revisions.pop(key, None)
                yield from self._forget(key)
            else:
                yield from self._put(pair)
            self._next = max(self._next, int(pair["mod_revision"]) + 1)

    def _put(self, pair: Mapping[str, Any]) -> Iterator[Change]:
        key, value = self._keys.decode(pair)
        self._revisions[key] = int(pair["mod_revision"])
        if (cordon := self._keys.parse_cordon(key)) is not None:
            yield from self._cordon_key_changed(*cordon, value.decode(errors="replace").removesuffix("."))
            return
        try:
            record = self._keys.record(key, value)
        except ValueError as error:
            log.warning("etcd has no valid record of a worker at %r: %s", key, error)
            yield from self._forget(key)
            return
        if self._records.get(record.url) != record:
            self._records[record.url] = record
            yield Put(record)

    def _forget(self, key: bytes) -> Iterator[Change]:
        if (cordon := self._keys.parse_cordon(key)) is not None:
            yield from self._cordon_key_changed(*cordon, None)
            return
        url = self._keys.url(key)
        if self._records.pop(url, None) is not None:
            yield Gone(url)

    def _cordon_key_changed(self, cordon: Key, present: bool, value: str | None) -> Iterator[Change]:
        """Handle a new value of one of the two keys of a reason; None: the key was deleted."""
        if identity_of(cordon[0]) != cordon[0]:
            self._other_spellings.add(cordon)
        values = self._cordons.setdefault(cordon, {})
        before = _entry(values)
        if value is None:
            values.pop(present, None)
        else:
            values[present] = value
        if not values:
            del self._cordons[cordon]
        after = _entry(values)
        if after is None and before is not None and before.present:
            after = undated(present=False)  # removed by a gateway older than versioned entries
        if after is not None and after != before:
            yield CordonsChanged({cordon: after})

    async def _check(self, endpoint: str) -> None:
        """Check again and again that ``endpoint`` responds, and has no change that the watch did not send.

        The read is linearizable: a majority has to confirm it, so it fails on a member that is partitioned
        from the others.
        """
        newest = {"sort_target": "MOD", "sort_order": "DESCEND", "limit": "1", "keys_only": True}
        behind: tuple[int, int] | None = None
        while True:
            await asyncio.sleep(CHECK_EVERY)
            reply = await self._client.call(
                "/v3/kv/range", {**self._keys.all, **newest}, until=within(CHECK_TIMEOUT), only=endpoint
            )
            newest_revision = max((int(pair["mod_revision"]) for pair in reply.get("kvs", ())), default=0)
            theirs = (int(reply.get("count", 0)), newest_revision)
            ours = (len(self._revisions), max(self._revisions.values(), default=0))
            if theirs == ours:
                behind = None
            elif theirs == behind:
                self._client.avoid(endpoint)
                raise self._lost("the watch has fallen behind")
            else:
                behind = theirs

    def _lost(self, why: str) -> PositionLost:
        self._next = 0
        return PositionLost(why)


def _entry(values: Mapping[bool, str]) -> Versioned | None:
    """Return the later of the entries that the two keys of a reason have; None: neither key exists.

    Both exist during a change, and where a gateway older than versioned entries set a reason which was
    removed before.
    """
    entries = [Versioned.from_text(value, present) for present, value in values.items()]
    if True in values and not values[True]:
        return undated(present=True)
    return max(entries, default=None)
