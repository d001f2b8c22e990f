"""The interfaces through which the control plane uses the other packages.

Owns: those protocols. Must never enter: an implementation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gateway.fleet.changes import Changes
from gateway.fleet.client import WorkerCalls
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.optional import AbortTarget
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.record import WorkerRecord

T = TypeVar("T")


class FleetView(Protocol):
    @property
    def workers(self) -> Sequence[Worker]:
        """All workers of the fleet."""
        ...

    def usable(self, capability: str) -> Sequence[Worker]:
        """Return the workers that can serve ``capability`` now."""
        ...

    def models(self) -> Mapping[str, WorkerInfo]:
        """Return each model that a usable worker serves, with the info of one such worker."""
        ...

    def follow(self) -> AbstractContextManager[Changes]:
        """Receive all changes from now on, until the context ends."""
        ...


class RegistrationView(Protocol):
    """The registration of workers.

    All methods but ``find`` raise StoreUnavailable. None waits for a worker.
    """

    def find(self, key: str) -> Worker | None:
        """Return the worker with this id or URL, None if there is none."""
        ...

    async def add(self, record: WorkerRecord) -> Worker:
        """Register a worker. Raise UrlNotAllowed or ReadOnlyStore."""
        ...

    async def remove(self, worker: Worker) -> None:
        """Drain ``worker`` and remove it. Raise ReadOnlyStore."""
        ...

    async def forget(self, url: str) -> bool:
        """Remove a record of another gateway that is no worker here yet. Return False if there is none."""
        ...

    async def cordon(self, worker: Worker) -> None: ...

    async def uncordon(self, worker: Worker) -> None: ...


class PausesView(Protocol):
    """Cordons of workers that were paused through the gateway; see gateway.fleet.cordons."""

    async def pause(
        self, workers: Collection[Worker], kind: str, parts: Collection[str]
    ) -> Mapping[Worker, frozenset[str]]:
        """Cordon ``workers`` because ``parts`` of ``kind`` are paused.

        Return which of them are new, by worker.
        """
        ...

    async def resume(self, worker: Worker, kind: str, parts: Collection[str], *, every: bool = False) -> None:
        """Remove ``parts``, or with ``every`` all parts, from the cordon of ``worker``."""
        ...


class LifecycleView(Protocol):
    @property
    def leaving(self) -> bool:
        """True if clients should send requests elsewhere, although they may still be accepted."""
        ...

    @property
    def draining(self) -> bool: ...

    async def run_control_call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``, a call to engines.

        A drain waits for it; when the grace period ends it is cancelled and this raises Draining.
        """
        ...


class AbortResult(Protocol):
    """The result of an abort at one worker; ``error`` is None if the worker accepted it.

    ``worker`` is None for exchanges that were not sent to a worker yet.
    """

    @property
    def worker(self) -> str | None: ...

    @property
    def aborted(self) -> int: ...

    @property
    def error(self) -> str | None: ...


class AbortView(Protocol):
    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[AbortResult]:
        """Abort the exchanges of ``format`` that ``target`` names.

        Return one result per worker that has some.
        """
        ...


class ProcessStateView(Protocol):
    """The state of the gateway processes.

    ``settled``: all have served at the same time once. ``usable``: each that serves has a usable worker.
    """

    @property
    def wanted(self) -> int: ...

    @property
    def serving(self) -> int: ...

    @property
    def settled(self) -> bool: ...

    @property
    def usable(self) -> bool: ...


class AggregateView(Protocol):
    """The aggregate over all processes of a gateway that has several."""

    @property
    def state(self) -> ProcessStateView: ...

    async def loads(self) -> Mapping[str, int]:
        """Return the requests that the other processes have in flight, by worker URL."""
        ...

    async def metrics(self) -> tuple[bytes, str] | None:
        """Return body and content type of the scrape over all processes, None if they cannot be asked."""
        ...


@dataclass(frozen=True, slots=True)
class Views:
    """All interfaces together.

    ``metrics`` returns the body and content type of a scrape. ``describe`` returns once a worker was asked
    anew what it serves. ``calls`` sends calls to workers. ``aggregate`` is None if there is only this
    process.
    """

    fleet: FleetView
    lifecycle: LifecycleView
    aborter: AbortView
    metrics: Callable[[], tuple[bytes, str]]
    registration: RegistrationView
    pauses: PausesView
    describe: Callable[[Worker], Awaitable[None]]
    calls: WorkerCalls
    aggregate: AggregateView | None = None

    async def loads_elsewhere(self) -> Mapping[str, int]:
        """Return the requests that other processes of the gateway have in flight, by worker URL."""
        return await self.aggregate.loads() if self.aggregate is not None else {}
