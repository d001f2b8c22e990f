"""A running API server, and stores that follow it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio
import trustme

from gateway.loop.tasks import Tasks
from gateway.stores.backoff import BackoffDelays
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.follower import Selection, Timing
from gateway.stores.kubernetes.pods import PODS
from gateway.stores.kubernetes.reading import Defaults, Resource
from gateway.stores.kubernetes.store import KubernetesStore
from tests.stores.kubernetes.server import ApiServer
from tests.stores.watching import Watched
from tests.support.gateway import until

#: Short delays. The slow delay is an hour, so a test that needs it fails.
QUICK = Timing(
    watch=20, slack=5, answer=5, delays=BackoffDelays(first=0.01, longest=0.03, slow=3600, most=3600)
)


class Site:
    """A simulated cluster, and the stores that follow it until the end of a test."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.server = ApiServer(authority)
        self.cluster = self.server.cluster
        self.certificates, self.token = folder / "ca.crt", folder / "token"
        authority.cert_pem.write_to_path(str(self.certificates))
        self.token.write_text(self.server.token)
        self.stores: list[KubernetesStore] = []
        self.tasks = Tasks()

    @property
    def access(self) -> ApiServerAccess:
        return ApiServerAccess(self.server.url, self.token, self.certificates)

    def store(
        self,
        *,
        resource: Resource = PODS,
        selector: str = "app=engine",
        namespace: str | None = "default",
        timing: Timing = QUICK,
        access: ApiServerAccess | None = None,
    ) -> KubernetesStore:
        selection = Selection(resource, selector, namespace, Defaults())
        self.stores.append(KubernetesStore(access or self.access, selection, random.Random(), timing))
        return self.stores[-1]

    def read(self, **options: Any) -> Watched:
        """Return a reader of a store with these options."""
        reader = Watched(self.store(**options))
        self.tasks.spawn(reader.run(), "reader")
        return reader

    async def follow(self, **options: Any) -> Watched:
        """Return a reader whose watch is open."""
        reader = self.read(**options)
        await until(lambda: reader.store.healthy and self.server.watching > 0)
        return reader


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    found = Site(tmp_path)
    await found.server.start()
    try:
        yield found
    finally:
        for store in found.stores:
            await store.close()
        await found.tasks.stop()
        await found.server.stop()


async def stays(check: Callable[[], bool], moments: int = 10) -> None:
    """Assert that ``check`` stays true for 0.1 s."""
    for _ in range(moments):
        assert check()
        await asyncio.sleep(0.01)
