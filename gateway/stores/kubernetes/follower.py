"""Following the objects of a selection.

Owns: list, then watch, and what comes after each way in which they end. Must never enter: what an object
means, HTTP, who reads the changes.
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
from gateway.stores.kubernetes.failures import Expired, Failure, Unreachable
from gateway.stores.kubernetes.mirror import Mirror
from gateway.stores.kubernetes.objects import Object, parts, text
from gateway.stores.kubernetes.reading import Defaults, ObjectWorkers, Resource
from gateway.stores.kubernetes.worker_index import Name
from gateway.stores.status import Status

#: Objects in a page. A pod is some 10 KiB, and the loop stands still while a page is taken apart.
PAGE = 100
#: A watch that ended sooner than this, in seconds, and without an event, was no watch.
BRIEF = 1.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects to follow: of ``kind``, in ``namespace`` (None: all), with the labels of ``selector``."""

    kind: Resource
    selector: str
    namespace: str | None
    defaults: Defaults = Defaults()


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds. ``watch`` is how long the server is to keep a watch open, ``slack`` how late it may be with
    its end before it counts as dead; ``answer`` is for a page, and until a watch begins."""

    watch: float = 240.0
    slack: float = 10.0
    answer: float = 30.0
    pauses: BackoffDelays = BackoffDelays()


class Follower:
    """One watch of a store: tells ``emit`` a Reset, then changes, until it is cancelled."""

    def __init__(
        self,
        access: ApiServerAccess,
        selection: Selection,
        timing: Timing,
        status: Status,
        chance: random.Random,
    ) -> None:
        self._access = access
        self._target = selection.kind.target(selection.namespace)
        self._query: Query = {"labelSelector": selection.selector}
        self._timing = timing
        self._status = status
        self._chance = chance
        self._backoff = Backoff(timing.pauses, chance)
        self._mirror = Mirror(selection.kind, selection.defaults)

    async def run(self, emit: Emit) -> None:
        """Go on for ever, whatever fails."""
        while True:
            try:
                async with self._connected() as api:
                    await self._follow(api, emit)
            except Failure as failure:
                await self._recover(failure)

    async def _follow(self, api: Api, emit: Emit) -> None:
        """One watch, after a list if the place was lost. Raises Failure."""
        if self._mirror.version is None:
            await emit(await self._list(api))
        async with self._watching(api) as watch:
            while (events := await watch.read()) is not None:
                for event in events:
                    for change in self._mirror.take(event):
                        await emit(change)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Api]:
        async with AsyncExitStack() as stack:
            async with self._answering():
                api = await stack.enter_async_context(connected(self._access))
            yield api

    @asynccontextmanager
    async def _watching(self, api: Api) -> AsyncIterator[_Watch]:
        seconds = self._timing.watch * (1 + self._chance.random()) / 2  # gateways do not come back in step
        query = {
            **self._query,
            "resourceVersion": self._mirror.version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(round(seconds), 1)),
        }
        async with AsyncExitStack() as stack:
            async with self._answering():
                stream = await stack.enter_async_context(api.watch(self._target, query))
            self._status.up()
            watch = _Watch(stream, seconds + self._timing.slack)
            try:
                yield watch
            finally:
                if watch.useful:
                    self._backoff.reset()

    async def _list(self, api: Api) -> Reset:
        """All objects; in one piece if the server forgot the first pages before it was asked for the last."""
        try:
            return await self._pages(api, {**self._query, "limit": str(PAGE)})
        except Expired:
            return await self._pages(api, self._query)

    async def _pages(self, api: Api, query: Query) -> Reset:
        readings: dict[Name, ObjectWorkers] = {}
        following: Query = {}
        while True:
            async with self._answering():
                page = await api.page(self._target, {**query, **following})
            readings |= self._mirror.read(parts(page, "items"))
            if not (more := text(page, "metadata", "continue")):
                break
            following = {"continue": more}
        version = text(page, "metadata", "resourceVersion")
        if not version:
            raise Unreachable("the API server gave a list without a version")
        return self._mirror.restart(readings, version)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timing.answer):
                yield
        except TimeoutError:
            raise Unreachable(f"the API server did not answer within {self._timing.answer:g} s") from None

    async def _recover(self, failure: Failure) -> None:
        """Say what went wrong, and wait until it is worth another try."""
        if failure.slow or isinstance(failure, Expired):
            # Who may not watch may still list: the fleet is then as old as the pause is long.
            self._mirror.version = None
        # A place that is lost now and then is nothing to speak of; a list finds it again.
        lost_once = self._backoff.fresh and isinstance(failure, Expired)
        pause = self._backoff.failed(slow=failure.slow, at_least=failure.wait)
        if not lost_once:
            self._status.down(str(failure))
            await asyncio.sleep(pause)


class _Watch:
    """One watch, and whether it was of use: one that ends at once is a failure, or it would be tried at once
    for ever."""

    def __init__(self, stream: Stream, seconds: float) -> None:
        self._stream = stream
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self._ends = self._began + seconds
        self._heard = False

    @property
    def useful(self) -> bool:
        return self._heard or self._now() - self._began >= BRIEF

    async def read(self) -> list[Object] | None:
        """As Stream.read. Raises Unreachable, also when the server should long have closed it."""
        try:
            async with asyncio.timeout_at(self._ends):
                events = await self._stream.read()
        except TimeoutError:
            raise Unreachable("the API server fell silent") from None
        if events is None and not self.useful:
            raise Unreachable("the API server ended a watch as soon as it began")
        self._heard = self._heard or any(text(event, "type") != "ERROR" for event in events or ())
        return events
