"""The fleet following a store.

Owns: applying a store's changes to the members and their marks. Must never enter: a store, what a record
means (``members``) or a mark (``marks``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from gateway.fleet.allow import UrlPattern, permitted
from gateway.fleet.marks import Marks
from gateway.fleet.members import Members
from gateway.fleet.record import WorkerRecord
from gateway.stores.base import Gone, Marked, Put, Reset, Store

log = logging.getLogger(__name__)

#: Records that are applied before others get their turn.
BATCH = 32


async def follow(store: Store, members: Members, marks: Marks, allowed: Sequence[UrlPattern] = ()) -> None:
    """Apply every change of ``store``, until it is closed. Its records must match ``allowed`` as well: others
    than this gateway write to it."""
    applied = 0
    async for change in store.watch():
        match change:
            case Reset(records):
                marks.tell_all(change.marks)
                members.keep_only(one for one in records.values() if _may_enter(one, allowed))
            case Put(record):
                if _may_enter(record, allowed):
                    members.refresh(record)
            case Marked(url, words):
                marks.tell(url, words)
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
