"""The fleet following a store.

Owns: applying a store's changes to the members. Must never enter: a store, what a record means (``members``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from gateway.fleet.allow import UrlPattern, permitted
from gateway.fleet.members import Members
from gateway.fleet.record import WorkerRecord
from gateway.stores.base import Gone, Put, Reset, Store

log = logging.getLogger(__name__)

#: Records that are applied before others get their turn.
BATCH = 32


async def follow(store: Store, members: Members, allowed: Sequence[UrlPattern] = ()) -> None:
    """Apply every change of ``store``, until it is closed. Its records must match ``allowed`` as well: others
    than this gateway write to it."""
    applied = 0
    async for change in store.watch():
        match change:
            case Reset(records):
                members.keep_only(one for one in records.values() if _may_enter(one, allowed))
            case Put(record):
                if _may_enter(record, allowed):
                    members.refresh(record)
            case Gone(url):
                members.gone(url)
        applied += 1
        if applied % BATCH == 0:
            await asyncio.sleep(0)


def _may_enter(record: WorkerRecord, allowed: Sequence[UrlPattern]) -> bool:
    if permitted(record.url, allowed):
        return True
    log.warning("worker %s of the store is none of the URLs that may be workers here", record.url)
    return False
