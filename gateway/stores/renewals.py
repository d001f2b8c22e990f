"""Keeping leases alive while their store is open.

Owns: when a lease is renewed, and the log lines when that fails. Must never enter: where a lease lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.loop.tasks import Tasks
from gateway.stores.base import StoreUnavailable

log = logging.getLogger(__name__)

#: A lease that could not be renewed is tried again after so many seconds, or sooner if it is short.
AGAIN = 1.0

#: Renews one lease once; False: there is nothing to renew any more. May raise StoreUnavailable.
Renew = Callable[[], Awaitable[bool]]


class Renewals:
    """Renews each lease three times in its length, by a task of its own."""

    def __init__(self) -> None:
        self._tasks = Tasks()
        self._of: dict[str, asyncio.Task[None]] = {}

    async def start(self, url: str, seconds: float, renew: Renew) -> None:
        """From now on call ``renew`` for the lease of ``url``, which lasts ``seconds``, and nothing else."""
        await self.stop(url)
        self._of[url] = self._tasks.keep_running(
            lambda: _keep(url, seconds / 3, renew), f"renewal of the lease of {url}"
        )

    async def stop(self, url: str) -> None:
        """Renew no more; whatever renewal is under way has ended."""
        task = self._of.pop(url, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Renew nothing any more."""
        self._of.clear()
        await self._tasks.stop()


async def _keep(url: str, third: float, renew: Renew) -> None:
    failing = False
    while True:
        await asyncio.sleep(min(third, AGAIN) if failing else third)
        try:
            if not await renew():
                log.warning("somebody took %s away; it is kept no more", url)
                return
        except StoreUnavailable as error:
            if not failing:
                log.warning("the lease of %s is not renewed: %s", url, error)
            failing = True
        else:
            if failing:
                log.info("the lease of %s is renewed again", url)
            failing = False
