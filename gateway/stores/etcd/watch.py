"""One reader's place in the history of the records in etcd, and how it is kept and lost.

Owns: the list of all records, the watch that goes on from it, and noticing that one was cut off or lags. Must
never enter: writing, how often to try again.

The place is a revision: etcd keeps all changes since the last compaction, so a watch that broke off goes on
behind what it saw last and misses nothing. When those revisions are compacted, or were never there because
the cluster's data was replaced, all records are listed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset
from gateway.stores.etcd.client import EtcdClient, within
from gateway.stores.etcd.keys import Keys
from gateway.stores.etcd.wire import EtcdError, Unreachable
from gateway.stores.feeds import Emit
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Versioned, undated

log = logging.getLogger(__name__)

#: Seconds between two questions to the member that a watch is held with, and for each answer. A watch tells
#: nothing while nothing changes, so that its silence means little.
CHECK_EVERY, CHECK_PATIENCE = 1.0, 2.0
#: Seconds for a list of all records, and for the head of a watch's reply.
LIST_PATIENCE, OPEN_PATIENCE = 5.0, 2.0


class PlaceLost(Exception):
    """What comes next cannot be told from what was seen last; the message says why."""


class WatchReader:
    """Reads the records below ``keys`` for one watch. ``in_touch`` is called once a watch has begun."""

    def __init__(self, client: EtcdClient, keys: Keys, in_touch: Callable[[], None]) -> None:
        self._client = client
        self._keys = keys
        self._in_touch = in_touch
        self._cluster = ""
        #: The first revision not seen yet; 0: no place yet.
        self._next = 0
        self._records: dict[str, WorkerRecord] = {}
        #: The cordons, by URL and reason: the values of the present key (True) and of its tombstone (False).
        self._cordons: dict[tuple[str, str], dict[bool, str]] = {}
        #: The revision each key was changed at last, those that hold no record as well.
        self._revisions: dict[bytes, int] = {}

    async def read(self, emit: Emit) -> None:
        """Tell changes until something fails. Raises EtcdError, and PlaceLost when the place is given up."""
        if not self._next:
            await emit(await self._list())
        endpoint = self._client.endpoint
        watch = {"create_request": {**self._keys.all, "start_revision": str(self._next)}}
        try:
            async with (
                self._client.stream(endpoint, "/v3/watch", watch, until=within(OPEN_PATIENCE)) as messages,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(self._check(endpoint))
                async for message in messages:
                    for change in self._understood(message):
                        await emit(change)
        except BaseExceptionGroup as failures:
            raise _cause(failures) from failures

    async def _list(self) -> Reset:
        reply = await self._client.call("/v3/kv/range", self._keys.all, until=within(LIST_PATIENCE))
        header = reply.get("header", {})
        self._revisions.clear()
        self._records.clear()
        self._cordons.clear()
        for entry in reply.get("kvs", ()):
            for change in self._put(entry):
                assert isinstance(change, Put | CordonsChanged), "there was nothing before"
        self._cluster = header.get("cluster_id", "")
        self._next = int(header.get("revision", 0)) + 1
        cordons: dict[str, dict[str, Versioned]] = {}
        for (url, reason), values in self._cordons.items():
            if (entry := _latest(values)) is not None:
                cordons.setdefault(url, {})[reason] = entry
        return Reset(dict(self._records), cordons)

    def _understood(self, message: Mapping[str, Any]) -> Sequence[Change]:
        try:
            return list(self._changes(message))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._next = 0
            raise Unreachable(f"a message of the watch makes no sense: {error!r}") from error

    def _changes(self, message: Mapping[str, Any]) -> Iterator[Change]:
        header = message.get("header", {})
        if message.get("compact_revision"):
            raise self._lost("the history since then was compacted")
        if message.get("canceled"):
            raise Unreachable("the watch was ended, and no reason given")
        if message.get("created"):
            if header.get("cluster_id") != self._cluster or int(header.get("revision", 0)) < self._next - 1:
                raise self._lost("the data of the cluster are not those that were read before")
            self._in_touch()
        for event in message.get("events", ()):
            entry = event["kv"]
            yield from self._gone(entry) if event.get("type") == "DELETE" else self._put(entry)
            self._next = max(self._next, int(entry["mod_revision"]) + 1)

    def _put(self, entry: Mapping[str, Any]) -> Iterator[Change]:
        key, value = self._keys.decode(entry)
        self._revisions[key] = int(entry["mod_revision"])
        if (cordon := self._keys.parse_cordon(key)) is not None:
            yield from self._cordon_changed(*cordon, value.decode(errors="replace").removesuffix("."))
            return
        try:
            record = self._keys.record(key, value)
        except ValueError as error:
            log.warning("etcd holds no record of a worker under %r: %s", key, error)
            yield from self._forget(key)
            return
        if self._records.get(record.url) != record:
            self._records[record.url] = record
            yield Put(record)

    def _gone(self, entry: Mapping[str, Any]) -> Iterator[Change]:
        key, _ = self._keys.decode(entry)
        self._revisions.pop(key, None)
        yield from self._forget(key)

    def _cordon_changed(self, url: str, reason: str, present: bool, value: str | None) -> Iterator[Change]:
        """One of the two keys of an entry has this value from now on; None: the key was deleted."""
        values = self._cordons.setdefault((url, reason), {})
        before = _latest(values)
        if value is None:
            values.pop(present, None)
        else:
            values[present] = value
        if not values:
            del self._cordons[url, reason]
        after = _latest(values)
        if after is None and before is not None and before.present:
            after = undated(present=False)  # deleted by a gateway that knows no versions
        if after is not None and after != before:
            yield CordonsChanged(url, {reason: after})

    def _forget(self, key: bytes) -> Iterator[Change]:
        if (cordon := self._keys.parse_cordon(key)) is not None:
            yield from self._cordon_changed(*cordon, None)
            return
        url = self._keys.url(key)
        if self._records.pop(url, None) is not None:
            yield Gone(url)

    async def _check(self, endpoint: str) -> None:
        """Ask ``endpoint`` time and again whether it is there, and knows nothing that the watch did not tell.

        A read that a majority has to confirm also finds out a member that was cut off from the others.
        """
        newest = {"sort_target": "MOD", "sort_order": "DESCEND", "limit": "1", "keys_only": True}
        behind: tuple[int, int] | None = None
        while True:
            await asyncio.sleep(CHECK_EVERY)
            reply = await self._client.call(
                "/v3/kv/range", {**self._keys.all, **newest}, until=within(CHECK_PATIENCE), only=endpoint
            )
            newest_revision = max((int(entry["mod_revision"]) for entry in reply.get("kvs", ())), default=0)
            there = (int(reply.get("count", 0)), newest_revision)
            here = (len(self._revisions), max(self._revisions.values(), default=0))
            if there == here:
                behind = None
            elif there == behind:
                self._client.avoid(endpoint)
                raise self._lost("the watch has fallen behind")
            else:
                behind = there

    def _lost(self, why: str) -> PlaceLost:
        self._next = 0
        return PlaceLost(why)


def _latest(values: Mapping[bool, str]) -> Versioned | None:
    """Return the later entry of the two keys; None if neither exists. Both exist in the midst of a change,
    and where a gateway that knows no versions has added a reason that was removed before."""
    if True in values and not values[True]:
        return undated(present=True)
    return max((Versioned.from_text(value, present) for present, value in values.items()), default=None)


def _cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one failure among those of the tasks that is about etcd; all of them if none is."""
    for failure in failures.exceptions:
        if isinstance(failure, EtcdError | PlaceLost):
            return failure
    return failures
