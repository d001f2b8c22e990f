"""Stores that follow a simulated API server, and their readers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path

from gateway.loop.tasks import Tasks
from gateway.stores.backoff import BackoffDelays
from gateway.stores.base import Reset
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.follower import Selection, Timing
from gateway.stores.kubernetes.pods import PODS
from gateway.stores.kubernetes.reading import Defaults, Resource
from gateway.stores.kubernetes.store import KubernetesStore
from gateway.stores.record import WorkerRecord
from tests.stores.kubernetes.server import ApiServer
from tests.stores.watching import Watched
from tests.support.gateway import until

#: Short delays. The slow delay is an hour, so a test that needs it fails.
QUICK = Timing(
    watch=20, slack=5, answer=5, delays=BackoffDelays(first=0.01, longest=0.03, slow=3600, most=3600)
)

NO_DEFAULTS = Defaults()


class Reader(Watched):
    """A reader, and the store it reads."""

    def __init__(self, store: KubernetesStore) -> None:
        super().__init__()
        self.store = store

    @property
    def fleet(self) -> Mapping[str, WorkerRecord]:
        return self.records or {}

    @property
    def resets(self) -> int:
        return sum(isinstance(change, Reset) for change in self.changes)

    async def run(self) -> None:
        async with aclosing(self.store.watch()) as changes:
            async for change in changes:
                self.saw(change)
        self.end()

    async def knows(self, *urls: str) -> None:
        """Wait until exactly these are the workers."""
        await until(lambda: self.records is not None and self.urls == set(urls))


class Site:
    """A simulated cluster, and the stores that follow it until the end of a test."""

    def __init__(self, server: ApiServer, certificates: Path, token: Path) -> None:
        self.server = server
        self.cluster = server.cluster
        self.certificates = certificates
        self.token = token
        self._stores: list[KubernetesStore] = []
        self._tasks = Tasks()

    @property
    def access(self) -> ApiServerAccess:
        return ApiServerAccess(self.server.url, self.token, self.certificates)

    def store(
        self,
        *,
        resource: Resource = PODS,
        selector: str = "app=engine",
        namespace: str | None = "default",
        defaults: Defaults = NO_DEFAULTS,
        timing: Timing = QUICK,
        access: ApiServerAccess | None = None,
    ) -> KubernetesStore:
        made = KubernetesStore(
            access or self.access,
            Selection(resource, selector, namespace, defaults),
            random.Random(),
            timing,
        )
        self._stores.append(made)
        return made

    def read(self, store: KubernetesStore) -> Reader:
        reader = Reader(store)
        self._tasks.spawn(reader.run(), "reader")
        return reader

    async def follow(self, store: KubernetesStore | None = None) -> Reader:
        """Return a reader whose watch is open."""
        reader = self.read(store or self.store())
        await until(lambda: reader.store.healthy and self.server.watching > 0)
        return reader

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        await self._tasks.stop()


async def stays(check: Callable[[], bool], moments: int = 10) -> None:
    """Assert that ``check`` stays true for 0.1 s."""
    for _ in range(moments):
        assert check()
        await asyncio.sleep(0.01)
