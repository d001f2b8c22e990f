"""The optional members of a format: their records, and the protocols of those that have no default.

Owns: everything a format may leave out. Must never enter: a dialect, I/O, a clock, a third-party package.
The defaults are in ``gateway.formats.base``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from gateway.formats.contract import Headers, Ids, Reader, ReplyHead, WorkerView
from gateway.formats.worker_contract import ProbeReply


class WorkerHealth(StrEnum):
    """The meaning of a worker's answer to the ``health`` request."""

    GOOD = "good"  # takes requests now
    BUSY = "busy"  # alive, takes no requests at the moment (paused, for example)
    BAD = "bad"


def health_by_status(reply: ProbeReply) -> WorkerHealth:
    """Return GOOD for 200, and for 404: an engine built without a health route is alive, too."""
    return WorkerHealth.GOOD if reply.status in (200, 404) else WorkerHealth.BAD


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The load an engine reports: requests it runs and requests it queues, from any client.

    ``cache_usage`` is the used share of its key-value cache, 0 to 1, of the fullest rank.
    """

    running: int
    waiting: int
    cache_usage: float | None = None


class LoadAlternative(NamedTuple):
    """Another path at which an engine reports its load.

    ``read`` converts the answer to the JSON value of the first path; None for an answer of another shape.
    """

    target: str
    read: Callable[[bytes], Any]


class EngineId(NamedTuple):
    """An engine's own name of a request that its client called ``id``.

    ``path`` is the relayed route of the request, None: the format's own endpoint. ``part`` is the number of
    one prompt of it, None: the whole request.
    """

    id: str
    path: str | None = None
    part: int | None = None


@dataclass(frozen=True, slots=True)
class AbortTarget:
    """The requests that a client's abort call names.

    Everything, or the requests with these public ``ids`` at any route and those with these ``engine_ids``.
    """

    everything: bool = False
    ids: tuple[str, ...] = ()
    engine_ids: tuple[EngineId, ...] = ()


class RelayedRequest(Protocol):
    """A request of a relayed route, as far as it must be known to abort it.

    ``member`` is the member of the body that holds its id, None if it has none; the header ``X-Request-Id``
    always holds it. ``one_prompt`` is True for one prompt that is not a list. ``several_samples`` is True if
    it asks for several replies per prompt. ``beam_search`` is True for a beam search: the engine runs it as
    requests of its own.
    """

    @property
    def headers(self) -> Headers: ...

    @property
    def member(self) -> str | None: ...

    @property
    def one_prompt(self) -> bool: ...

    @property
    def several_samples(self) -> bool: ...

    @property
    def beam_search(self) -> bool: ...


@runtime_checkable
class Stepwise(Protocol):
    """A format that can read a large body in steps."""

    def parse_in_steps(self, body: bytes, headers: Headers) -> Generator[None, None, Any]:
        """Do what ``parse`` does, with the same result or error, and yield every few milliseconds."""
        ...


@runtime_checkable
class ReleasesBody(Protocol):
    """A format that does not need the body of a request once it was sent."""

    def without_body(self, request: Any) -> Any:
        """Return the request for ``reader``, ``join`` and ``abort`` without its body or a reference to it."""
        ...


@runtime_checkable
class JoinsStreams(Protocol):
    """A format that can fold a stream into the unary reply of the same engine.

    Nothing in the gateway calls it yet; migration will.
    """

    def join(self, request: Any, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        """Return a reader whose ``feed`` returns b"" and whose ``finish`` returns the whole unary body.

        A reply that is not a stream is forwarded as it is.
        """
        ...
