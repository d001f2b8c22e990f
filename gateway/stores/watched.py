"""What the stores have in common whose records live outside of the process.

Owns: whether such a store is in touch, and its watches. Must never enter: where records live, writing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from gateway.stores.base import Change
from gateway.stores.feeds import Emit, Feeds
from gateway.stores.status import Status


class WatchedStore(ABC):
    """See Store for what each member promises. ``name`` is how log lines call it."""

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
        return self._feeds.watch(self._feed, f"watch of {self._status.name}", self._status.down)

    async def close(self) -> None:
        """See Store."""
        await self._feeds.close()

    @abstractmethod
    async def _feed(self, emit: Emit) -> None:
        """Tell one watch what it has to hear, a Reset first, and ``_status`` how it goes, until cancelled."""
