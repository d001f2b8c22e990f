"""The read-only store of workers in Kubernetes.

Owns: the store's protocol for workers that others manage. Must never enter: how objects are followed.
"""

from __future__ import annotations

import random

from gateway.stores.base import ReadOnlyStore
from gateway.stores.feeds import Emit
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.follower import Follower, Selection, Timing
from gateway.stores.last_writer_wins.map import Updates
from gateway.stores.record import WorkerRecord
from gateway.stores.watched import WatchedStore


class KubernetesStore(WatchedStore):
    """A store in Kubernetes; see Store."""

    writable = False
    keeps_cordons = False

    def __init__(
        self,
        access: ApiServerAccess,
        selection: Selection,
        random_source: random.Random,
        timing: Timing | None = None,
    ) -> None:
        super().__init__("kubernetes")
        self._access = access
        self._selection = selection
        self._random = random_source
        self._timing = timing or Timing()

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """Raise ReadOnlyStore."""
        raise _read_only()

    async def delete(self, url: str) -> bool:
        """Raise ReadOnlyStore."""
        raise _read_only()

    async def write_cordons(self, updates: Updates) -> None:
        """See Store: the cluster is read only."""

    async def _feed(self, emit: Emit) -> None:
        follower = Follower(self._access, self._selection, self._timing, self._status, self._random)
        await follower.run(emit)


def _read_only() -> ReadOnlyStore:
    return ReadOnlyStore(
        "workers come from Kubernetes: add or remove pods, or change their annotations, instead"
    )
