"""Following the objects of a selection: list, then watch, again and again.

Owns: the order of requests, and what follows each kind of end. Must never enter: what an object means, HTTP,
who reads the changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from gateway.stores.backoff import Backoff, BackoffDelays
from gateway.stores.base import Reset
from gateway.stores.feeds import Emit
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.api import Api, Query, Stream, connected
from gateway.stores.kubernetes.failures import ApiServerUnreachable, Expired, Failure
from gateway.stores.kubernetes.object_cache import ObjectCache
from gateway.stores.kubernetes.objects import Object, parts, text
from gateway.stores.kubernetes.reading import Defaults, ObjectWorkers, Resource
from gateway.stores.kubernetes.worker_index import Name
from gateway.stores.status import Status

#: Objects in a page. A pod has some 10 KiB, and parsing a page blocks the event loop.
PAGE_SIZE = 100
#: A watch that ends within so many seconds, without any event, counts as failed.
BRIEF = 1.0


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects to follow. ``namespace`` None: all; ``selector`` is a label selector."""

    resource: Resource
    selector: str
    namespace: str | None
    defaults: Defaults = Defaults()


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of a follower, in seconds.

    ``watch``: how long the server should keep a watch open. ``slack``: how late it may end the watch before
    the connection counts as dead. ``answer``: the timeout of a page, and of a watch's head.
    """

    watch: float = 240.0
    slack: float = 10.0
    answer: float = 30.0
    delays: BackoffDelays = BackoffDelays()


class Follower:
    """A watch of the store, which emits a Reset, then each change, until it is cancelled."""

    def __init__(
        self,
        access: ApiServerAccess,
        selection: Selection,
        timing: Timing,
        status: Status,
        random_source: random.Random,
    ) -> None:
        self._access = access
        self._target = selection.resource.target(selection.namespace)
        self._query: Query = {"labelSelector": selection.selector}
        self._timing = timing
        self._status = status
        self._random = random_source
        self._backoff = Backoff(timing.delays, random_source)
        self._cache = ObjectCache(selection.resource, selection.defaults)

    async def run(self, emit: Emit) -> None:
        """Follow for ever, whatever fails."""
        while True:
            try:
                async with self._connected() as api:
                    await self._follow(api, emit)
            except Failure as failure:
                await self._recover(failure)

    async def _follow(self, api: Api, emit: Emit) -> None:
        """Watch once, after a list if there is no valid resourceVersion. Raises Failure."""
        if self._cache.version is None:
            await emit(await self._list(api))
        async with self._watching(api) as watch:
            while (events := await watch.read()) is not None:
                for event in events:
                    for change in self._cache.take(event):
                        await emit(change)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Api]:
        async with AsyncExitStack() as stack:
            async with self._answering():
                api = await stack.enter_async_context(connected(self._access))
            yield api

    @asynccontextmanager
    async def _watching(self, api: Api) -> AsyncIterator[_Watch]:
        # Random, so that gateways which lost the same server do not reconnect at the same time.
        seconds = self._timing.watch * (1 + self._random.random()) / 2
        query = {
            **self._query,
            "resourceVersion": self._cache.version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(round(seconds), 1)),
        }
        async with AsyncExitStack() as stack:
            async with self._answering():
                stream = await stack.enter_async_context(api.watch(self._target, query))
            self._status.connected()
            watch = _Watch(stream, seconds + self._timing.slack)
            try:
                yield watch
            finally:
                if watch.useful:
                    self._backoff.reset()

    async def _list(self, api: Api) -> Reset:
        """List all objects; without pages if the server has dropped the snapshot of the pages meanwhile."""
        try:
            return await self._pages(api, {**self._query, "limit": str(PAGE_SIZE)})
        except Expired:
            return await self._pages(api, self._query)

    async def _pages(self, api: Api, query: Query) -> Reset:
        objects: dict[Name, ObjectWorkers] = {}
        position: Query = {}
        while True:
            async with self._answering():
                page = await api.page(self._target, {**query, **position})
            objects |= self._cache.read(parts(page, "items"))
            if not (more := text(page, "metadata", "continue")):
                break
            position = {"continue": more}
        version = text(page, "metadata", "resourceVersion")
        if not version:
            raise ApiServerUnreachable("the API server sent a list without a resourceVersion")
        return self._cache.restart(objects, version)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timing.answer):
                yield
        except TimeoutError:
            raise ApiServerUnreachable(
                f"the API server did not answer within {self._timing.answer:g} s"
            ) from None

    async def _recover(self, failure: Failure) -> None:
        """Report the failure, and wait before the next attempt."""
        if failure.slow or isinstance(failure, Expired):
            # Without the right to watch, listing may still work: the fleet is then updated at each retry.
            self._cache.version = None
        # An expired version is normal now and then, and listing mends it.
        expired_once = self._backoff.fresh and isinstance(failure, Expired)
        delay = self._backoff.failed(slow=failure.slow, at_least=failure.wait)
        if not expired_once:
            self._status.disconnected(str(failure))
            await asyncio.sleep(delay)


class _Watch:
    """A watch, and whether it was useful.

    A watch that ends at once is a failure; otherwise it would be repeated without any delay.
    """

    def __init__(self, stream: Stream, seconds: float) -> None:
        self._stream = stream
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self._ends = self._began + seconds
        self._got_event = False

    @property
    def useful(self) -> bool:
        return self._got_event or self._now() - self._began >= BRIEF

    async def read(self) -> list[Object] | None:
        """Return as Stream.read does.

        Raises ApiServerUnreachable, also if the server does not end the watch in time.
        """
        try:
            async with asyncio.timeout_at(self._ends):
                events = await self._stream.read()
        except TimeoutError:
            raise ApiServerUnreachable("the API server stopped responding") from None
        if events is None and not self.useful:
            raise ApiServerUnreachable("the API server ended a watch as soon as it began")
        self._got_event = self._got_event or any(text(event, "type") != "ERROR" for event in events or ())
        return events
