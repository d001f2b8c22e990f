"""What the control plane may see of the rest.

Owns: the protocols it is written against. Must never enter: an implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gateway.fleet.changes import Changes
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.optional import AbortTarget
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.record import WorkerRecord

T = TypeVar("T")


class FleetView(Protocol):
    @property
    def workers(self) -> Sequence[Worker]:
        """All members."""
        ...

    def usable(self, capability: str) -> Sequence[Worker]:
        """The workers that can serve ``capability`` now."""
        ...

    def models(self) -> Mapping[str, WorkerInfo]:
        """Each model some usable worker serves, with the info of one that does."""
        ...

    def follow(self) -> AbstractContextManager[Changes]:
        """All changes from now on, until the context ends."""
        ...


class RegistrationView(Protocol):
    """Registering workers. All but ``find`` raise StoreUnavailable, none waits for a worker."""

    def find(self, key: str) -> Worker | None:
        """The member with this id or URL."""
        ...

    async def add(self, record: WorkerRecord) -> Worker:
        """Raises UrlNotAllowed and ReadOnlyStore."""
        ...

    async def remove(self, worker: Worker) -> None:
        """Drain it. Raises ReadOnlyStore."""
        ...

    async def forget(self, url: str) -> bool:
        """Take away what others registered and is no member here yet; False if there is none."""
        ...

    async def cordon(self, worker: Worker) -> None: ...

    async def uncordon(self, worker: Worker) -> None: ...


class PausesView(Protocol):
    """Cordons of workers that were paused through the gateway; see gateway.fleet.cordons.pauses."""

    async def pause(
        self, workers: Collection[Worker], kind: str, parts: Collection[str]
    ) -> Mapping[Worker, frozenset[str]]:
        """They lack ``parts`` of ``kind`` and get no request; which of them each lacked not before."""
        ...

    async def resume(self, worker: Worker, kind: str, parts: Collection[str], *, every: bool = False) -> None:
        """It has these again, and with ``every`` whatever else it lacks."""
        ...


class LifecycleView(Protocol):
    @property
    def leaving(self) -> bool:
        """Whether requests should go elsewhere, though they may still be taken."""
        ...

    @property
    def draining(self) -> bool: ...

    async def errand(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work``, a call of engines, comes to; a drain waits for it. Raises Draining where it was
        cut."""
        ...


class AbortResult(Protocol):
    """What one worker made of an abort; ``error`` is None when it took it.

    ``worker`` is None for the exchanges that no worker had yet.
    """

    @property
    def worker(self) -> str | None: ...

    @property
    def aborted(self) -> int: ...

    @property
    def error(self) -> str | None: ...


class AbortView(Protocol):
    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[AbortResult]:
        """Abort what ``target`` names among the exchanges of ``format``; one result per worker concerned."""
        ...


class ProcessStateView(Protocol):
    """How the processes of the gateway are; ``settled``: all have served at the same time once; ``usable``:
    each that serves has a usable worker."""

    @property
    def wanted(self) -> int: ...

    @property
    def serving(self) -> int: ...

    @property
    def settled(self) -> bool: ...

    @property
    def usable(self) -> bool: ...


class AggregateView(Protocol):
    """The other processes of a gateway that has several."""

    @property
    def state(self) -> ProcessStateView: ...

    async def loads(self) -> Mapping[str, int]:
        """Requests that they have in flight, by worker."""
        ...

    async def metrics(self) -> tuple[bytes, str] | None:
        """The scrape over all processes, body and content type; None: they cannot be asked."""
        ...


@dataclass(frozen=True, slots=True)
class Views:
    """All of it. ``metrics`` gives the scrape's body and content type; ``aggregate`` is None where this
    process is all there is."""

    fleet: FleetView
    lifecycle: LifecycleView
    aborter: AbortView
    metrics: Callable[[], tuple[bytes, str]]
    registration: RegistrationView
    pauses: PausesView
    aggregate: AggregateView | None = None

    async def loads_elsewhere(self) -> Mapping[str, int]:
        """Requests that other processes of the gateway have in flight, by worker."""
        return await self.aggregate.loads() if self.aggregate is not None else {}
