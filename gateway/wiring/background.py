"""What runs beside the exchanges, for as long as the application is served.

Owns: the order in which it begins and ends. Must never enter: what any of it does, and the making of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from gateway.fleet.allow import UrlPattern
from gateway.fleet.cordons.replication import CordonReplication
from gateway.fleet.members import Members
from gateway.fleet.sync import StoreFollower
from gateway.loop.tasks import Tasks
from gateway.prefork.member import Member
from gateway.proxy.services import Services
from gateway.security.file_changes import Refreshable, keep_fresh

#: Seconds that aborts still under way get at the end of the process.
ABORT_GRACE = 1.0
#: Seconds that workers known without a store wait for it to say which of them are paused or held.
FIRST_WORD = 1.0


class Background:
    """What runs beside the exchanges: the store, probes, the loop's lag, aborts under way, the access log."""

    def __init__(  # noqa: PLR0913 - all that begins and ends with the application
        self,
        services: Services,
        following: StoreFollower,
        members: Members,
        replication: CordonReplication,
        member: Member | None,
        allowed: Sequence[UrlPattern],
    ) -> None:
        self._services = services
        self._following = following
        self._store = following.store
        self._members = members
        self._replication = replication
        self._allowed = allowed
        self._member = member
        self._tasks = Tasks()
        #: Made of files that are read again when they change.
        self.kept_fresh: list[Refreshable] = []

    async def start(self) -> None:
        """Begin to watch every worker; returns at once, whatever the workers do, unless this replaces a
        process of several."""
        services = self._services
        if self._member is not None:
            await self._member.start(services.fleet)
        following = partial(self._following.run, self._members, self._replication.cordons, self._allowed)
        self._tasks.keep_running(following, "following the store")
        self._tasks.keep_running(self._watch_workers, "beginning to watch workers")
        self._tasks.keep_running(lambda: keep_fresh(self.kept_fresh), "reading keys and certificates again")
        self._tasks.keep_running(services.metrics.watch_loop, "event loop delay")
        if services.queue.on:
            self._tasks.keep_running(services.queue.serve, "requests that wait for a worker")
        if self._member is not None:
            await self._member.wait_for_workers(services.fleet)

    async def _watch_workers(self) -> None:
        """One that is paused must not get requests before that is known; but a store that is away keeps none
        from serving."""
        if self._store.keeps_cordons:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WORD):
                    await self._replication.cordons.loaded.wait()
        self._members.watch_all()

    async def stop(self) -> None:
        """End all of it; aborts under way get a moment to be heard."""
        services = self._services
        await services.aborter.close(ABORT_GRACE)
        await self._replication.close()
        await self._store.close()
        await services.health.stop()
        await self._tasks.stop()
        services.fleet.close()
        services.access_log.close()
        if self._member is not None:
            await self._member.stop()
