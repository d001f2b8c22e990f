"""The background tasks of a gateway, which run while the application is served.

Owns: the order in which they start and end. Must never enter: what a task does, the construction of
components.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from gateway.fleet.cordons import Cordons
from gateway.fleet.members import FleetMembership
from gateway.fleet.states import WorkerState
from gateway.fleet.sync import StoreFollower
from gateway.loop.tasks import Tasks
from gateway.prefork.member import ProcessLink
from gateway.proxy.services import Services
from gateway.security.file_changes import Refreshable, keep_fresh
from gateway.upstream.url_patterns import UrlPattern

log = logging.getLogger(__name__)

#: Seconds that aborts may still take when the process ends.
ABORT_GRACE = 1.0
#: Seconds to wait for the cordons in the store before configured workers are probed.
CORDONS_TIMEOUT = 1.0


class Background:
    """The tasks beside the exchanges: store, probes, delay of the event loop, refreshed files.

    ``refreshed`` are objects made of files, which are read again when the files change.
    """

    def __init__(  # noqa: PLR0913 - everything that starts and ends with the application
        self,
        services: Services,
        follower: StoreFollower,
        members: FleetMembership,
        cordons: Cordons,
        process_link: ProcessLink | None,
        allowed: Sequence[UrlPattern],
        refreshed: Sequence[Refreshable],
    ) -> None:
        self._services = services
        self._follower = follower
        self._store = follower.store
        self._members = members
        self._cordons = cordons
        self._allowed = allowed
        self._process_link = process_link
        self._tasks = Tasks()
        self._refreshed = list(refreshed)

    def refresh(self, thing: Refreshable) -> None:
        """Refresh ``thing`` as well."""
        self._refreshed.append(thing)

    async def start(self) -> None:
        """Start all tasks.

        Return at once, whatever the workers do. A process that replaces another one waits for its first
        probes.
        """
        services = self._services
        if self._process_link is not None:
            await self._process_link.start(services.fleet)
        follow = partial(self._follower.run, self._members, self._cordons, self._allowed)
        watch_loop = partial(services.metrics.watch_loop, lambda: services.fleet.workers)
        self._tasks.keep_running(follow, "following the store")
        self._tasks.keep_running(self._start_probing, "start of probing")
        self._tasks.keep_running(lambda: keep_fresh(self._refreshed), "reading keys and certificates again")
        self._tasks.keep_running(watch_loop, "event loop delay")
        if services.queue.enabled:
            self._tasks.keep_running(services.queue.serve, "queue")
        if self._process_link is not None:
            await self._process_link.wait_for_workers(services.fleet)

    async def _start_probing(self) -> None:
        """Probe the configured workers once the cordons in the store are known.

        A paused worker must not get requests before. An unreachable store delays probing by CORDONS_TIMEOUT
        only.
        """
        if self._store.keeps_cordons:
            with suppress(TimeoutError):
                async with asyncio.timeout(CORDONS_TIMEOUT):
                    await self._cordons.loaded.wait()
        self._members.watch_all()

    async def stop(self) -> None:
        """End all tasks. Aborts may still take ABORT_GRACE seconds."""
        services = self._services
        await services.aborter.close(ABORT_GRACE)
        await self._cordons.close()
        await self._store.close()
        await services.health.stop()
        for worker in services.fleet.workers:
            if worker.state is WorkerState.JOINING:
                log.warning("worker %s was not usable until the end: %s", worker.url, worker.reason)
        await self._tasks.stop()
        services.fleet.close()
        services.access_log.close()
        if self._process_link is not None:
            await self._process_link.stop()
