"""Apply the changes of a store to the fleet.

Owns: which change goes to the members and which to the cordons. Must never enter: a store, what a record or a
cordon means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from gateway.fleet.cordons import Cordons
from gateway.fleet.members import FleetMembership
from gateway.fleet.records import RecordsByWorker
from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset, Store
from gateway.stores.record import WorkerRecord
from gateway.upstream.url_patterns import UrlPattern, permitted

log = logging.getLogger(__name__)

#: Changes that are applied before the event loop runs something else.
BATCH = 32


class StoreFollower:
    """The follower of ``store``."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._applies = True
        self._records = RecordsByWorker()

    @property
    def healthy(self) -> bool:
        """True if the fleet is known to match the store."""
        return self.store.healthy and self._applies

    async def run(
        self, members: FleetMembership, cordons: Cordons, allowed: Sequence[UrlPattern] = ()
    ) -> None:
        """Apply every change, until the store is closed. Records that do not match ``allowed`` are left out,
        as others than this gateway write to the store. Each run begins with all records."""
        applied = 0
        async with aclosing(self.store.watch()) as changes:
            async for change in changes:
                self._applies = False
                self._apply(change, members, cordons, allowed)
                self._applies = True
                applied += 1
                if applied % BATCH == 0:
                    await asyncio.sleep(0)

    def _apply(
        self, change: Change, members: FleetMembership, cordons: Cordons, allowed: Sequence[UrlPattern]
    ) -> None:
        match change:
            case Reset(records, entries):
                cordons.merge_store(entries)
                may_enter = [record for record in records.values() if _may_enter(record, allowed)]
                members.keep_only(self._records.replace(may_enter))
            case Put(record):
                if _may_enter(record, allowed):
                    members.refresh(self._records.put(record))
            case CordonsChanged(entries):
                cordons.merge_store_change(entries)
            case Gone(url):
                if (left := self._records.remove(url)) is None:
                    members.on_record_removed(url)
                else:
                    members.refresh(left)


def _may_enter(record: WorkerRecord, allowed: Sequence[UrlPattern]) -> bool:
    if permitted(record.url, allowed):
        return True
    log.warning("worker %s of the store is not allowed by --allow-worker-url", record.url)
    return False
