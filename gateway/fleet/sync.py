"""The fleet following a store.

Owns: applying a store's changes to the members. Must never enter: a store, what a record means (``members``).
"""

from __future__ import annotations

import asyncio

from gateway.fleet.members import Members
from gateway.stores.base import Gone, Put, Reset, Store

#: Records that are applied before others get their turn.
BATCH = 32


async def follow(store: Store, members: Members) -> None:
    """Apply every change of ``store``, until it is closed."""
    applied = 0
    async for change in store.watch():
        match change:
            case Reset(records):
                members.keep_only(records.values())
            case Put(record):
                members.refresh(record)
            case Gone(url):
                members.gone(url)
        applied += 1
        if applied % BATCH == 0:
            await asyncio.sleep(0)
