"""Renewal of records with a TTL, while their store is open.

Owns: when a record is renewed, and the log lines when that fails. Must never enter: how a record is renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.loop.tasks import Tasks
from gateway.stores.base import StoreUnavailable

log = logging.getLogger(__name__)

#: Seconds until a failed renewal is tried again, unless a third of the TTL is shorter.
RETRY_AFTER = 1.0

#: Renews one record once; returns False if it was removed and must not be renewed any more. May raise
#: StoreUnavailable.
Renew = Callable[[], Awaitable[bool]]


class Renewals:
    """The tasks that renew records, each three times within its TTL."""

    def __init__(self) -> None:
        self._tasks = Tasks()
        self._by_url: dict[str, asyncio.Task[None]] = {}

    async def start(self, url: str, ttl: float, renew: Renew) -> None:
        """Renew the record of ``url``, whose TTL is ``ttl`` seconds, by ``renew`` only from now on."""
        await self.stop(url)
        self._by_url[url] = self._tasks.keep_running(
            lambda: _renew_forever(url, ttl / 3, renew), f"renewal of {url}"
        )

    async def stop(self, url: str) -> None:
        """Stop renewing; a renewal that is running has ended when this returns."""
        task = self._by_url.pop(url, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Stop all renewals."""
        self._by_url.clear()
        await self._tasks.stop()


async def _renew_forever(url: str, interval: float, renew: Renew) -> None:
    failing = False
    while True:
        await asyncio.sleep(min(interval, RETRY_AFTER) if failing else interval)
        try:
            if not await renew():
                log.warning("the record of %s was removed by somebody else; it is not renewed any more", url)
                return
        except StoreUnavailable as error:
            if not failing:
                log.warning("the record of %s could not be renewed: %s", url, error)
            failing = True
        else:
            if failing:
                log.info("the record of %s is renewed again", url)
            failing = False
