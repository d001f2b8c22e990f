"""The common part of the stores whose records are kept outside of the process.

Owns: the connection state of such a store, and its watches. Must never enter: where records are kept, writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from gateway.stores.base import Change
from gateway.stores.feeds import Emit, Feeds
from gateway.stores.status import Status


class WatchedStore(ABC):
    """The part of Store about health and watches. ``name`` is the store's name in log lines."""

    def __init__(self, name: str) -> None:
        self._status = Status(name)
        self._feeds = Feeds()

    @property
    def healthy(self) -> bool:
        """See Store."""
        return self._status.healthy

    @property
    def reason(self) -> str:
        """See Store."""
        return self._status.reason

    def watch(self) -> AsyncGenerator[Change, None]:
        """See Store."""
        return self._feeds.watch(self._feed, f"watch of {self._status.name}", self._status.disconnected)

    async def close(self) -> None:
        """See Store."""
        await self._feeds.close()

    @abstractmethod
    async def _feed(self, emit: Emit) -> None:
        """Emit a Reset, then each change, and keep ``_status`` up to date, until cancelled."""
