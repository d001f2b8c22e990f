"""The request path of a format: eight members, and the records they exchange with the gateway.

Owns: the protocols ``Format`` and ``Reader``, and the records of one exchange. Must never enter: a dialect,
I/O, a clock, a third-party package, members that a format may leave out (``gateway.formats.optional``).

A format is a stateless object, found through the entry-point group ``gateway.formats``. For one request the
gateway calls, in this order: ``parse``, ``project``, ``upstream`` (once a worker is selected), ``reader``
(once the worker's status line and headers have arrived), then ``feed`` of the reader for each read, and
``finish`` or ``fail`` at the end. ``abort`` gives the requests that stop an exchange at its engine;
``render`` turns an error of the gateway into an error reply of the dialect. All members are synchronous, do
no I/O and keep no state between requests. How workers are recognised is in
``gateway.formats.worker_contract``. A format derives from ``gateway.formats.base.BaseFormat``;
docs/writing-a-format.md shows a complete one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.errors import GatewayError
from gateway.formats.headers import Headers as Headers
from gateway.formats.headers import header as header
from gateway.formats.routing_hints import Hints
from gateway.formats.worker_contract import WorkerInfo

R = TypeVar("R")

#: Separates capabilities of which a worker must offer at least one.
ANY_OF = "|"
#: ``Projection.longest`` of a request that is not compared with a token budget.
UNKNOWN_LENGTH = (0, 0)


class Ids(NamedTuple):
    """The request ids of one exchange; more than one for a batch whose prompts have an id each.

    ``public`` are the ids the client sees, ``dispatch`` those the engine sees, in the same order. They are
    equal if the client's ids were safe to use. ``parts`` is used for aborts only: the prompts to abort, by
    the numbers the engine gives them under its one id; () means the whole exchange.
    """

    public: tuple[str, ...]
    dispatch: tuple[str, ...]
    parts: tuple[int, ...] = ()

    @property
    def private(self) -> bool:
        """True if the engine sees other ids than the client."""
        return self.public != self.dispatch


class Projection(NamedTuple):
    """The facts of a request that routing, request ids and metrics use.

    ``ids`` are the ids the client chose, () if none; ``ids_usable`` is False if the engine cannot be given
    them. ``id_member`` is the member of the JSON body that holds the client's id, None if the dialect has no
    such member; two bodies that differ only there are the same request. ``id_cuts`` is where in the body that
    member stands, its comma included, if parsing has found it. ``prompt_tokens`` is the number of prompt
    token ids, None if the prompt is text or embeddings. ``max_tokens`` is the client's limit, None if it set
    none. ``model`` is None if the body names none. ``samples`` is the number of replies (prompts times n).
    ``hints`` computes what only a routing policy may need, at each call. ``resource`` is the id of something
    that one worker created and only that one has, such as a response; None: it refers to nothing.
    ``longest`` is about the prompt that is longest with its reply: the number of its token ids, and of both
    together, with at least one for the reply; zeros if that is not known exactly (text, embeddings, media).

    A tuple, because one is made per request and no other immutable record is made faster.
    """

    stream: bool
    ids: tuple[str, ...] = ()
    ids_usable: bool = True
    id_member: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    samples: int = 1
    hints: Callable[[], Hints] = Hints
    id_cuts: Sequence[tuple[int, int]] | None = None
    resource: str | None = None
    longest: tuple[int, int] = UNKNOWN_LENGTH


class WorkerView(Protocol):
    """The worker that a request is written for."""

    @property
    def prefix(self) -> bytes:
        """Path prefix of the worker's URL: b"", or a path with a slash at its start and none at its end."""
        ...

    @property
    def authorization(self) -> bytes | None:
        """Value of ``Authorization`` that replaces the client's own, or None."""
        ...

    @property
    def info(self) -> WorkerInfo | None:
        """The result of the probes, None before the first answer."""
        ...


class UpstreamRequest(NamedTuple):
    """An HTTP request for a worker.

    ``headers`` contain no ``Host``, no ``Content-Length`` and no hop-by-hop header (RFC 9110, 7.6.1).
    ``rest`` are further pieces of the body after ``body``, for a body too large to be copied into one.
    """

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    rest: Sequence[bytes | memoryview] = ()


class ReplyHead(NamedTuple):
    """Status and headers of a worker's final response (not 1xx); header names are in lower case."""

    status: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A complete error response in the dialect; ``headers`` contain ``content-type``."""

    status: int
    headers: Headers
    body: bytes


class Ending(StrEnum):
    """How a reply ended, as its bytes say; a label of metrics and a field of the access log."""

    STOP = "stop"
    LENGTH = "length"
    OTHER = "other"  # another finish reason, or different ones for different samples
    CLIENT_ABORT = "client_abort"
    ENGINE_ABORT = "engine_abort"  # a finish reason that carries an error status
    ERROR_EVENT = "error_event"  # an error inside a stream with status 200
    ERROR_STATUS = "error_status"  # a status of 400 or more
    OPAQUE = "opaque"  # forwarded without inspection
    INCOMPLETE = "incomplete"  # no terminal event
    MALFORMED = "malformed"


@dataclass(slots=True)
class ReplyFacts:
    """The facts that a reader has found in a reply so far.

    ``tokens`` is the number of generated tokens of all samples; it never decreases. ``finish_reasons`` has an
    entry per finished sample (``stop``, ``length``, ``abort`` ...). ``terminal`` is True once the engine has
    said that the exchange is complete. ``error_status`` is the status of an error inside a reply with status
    200 (an error event, or an abort with a status), else None. ``routing_data`` is what a router behind the
    worker's URL reported about its own choice; it is removed from the payload.

    ``foreign``: it is complete, but has nothing that a reply of the dialect has; its worker has failed.

    ``created`` is the id of what the worker created by this reply, for requests that refer to it.

    ``steps`` is set by a ``feed`` that returned nothing because the work takes long. It must be run to its
    end, a few milliseconds at a time, before the next ``feed``. Each value it yields is sent on (None:
    nothing); it raises what ``feed`` raises.

    ``unsent`` is the size of the complete events that ``feed`` did not return because a malformed one came in
    the same read; ``fail`` returns them first.

    ``ending`` is set by ``finish``, or by ``fail`` if the engine had already sent everything. A reader leaves
    it None for an incomplete reply: ``gateway.exchange`` then derives it from the class of the error.
    """

    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    terminal: bool = False
    error_status: int | None = None
    ending: Ending | None = None
    routing_data: Mapping[str, Any] | None = None
    foreign: bool = False
    created: str | None = None
    steps: Generator[bytes | None, None, None] | None = None
    unsent: int = field(default=0, compare=False)  # it depends on how the bytes were split


class Reader(Protocol):
    """Inspects, and where needed rewrites, the body of one reply. Synchronous, without I/O or a clock."""

    facts: ReplyFacts
    #: True if bytes are sent on as they arrive, so the status may be sent before the first of them.
    streaming: bool
    #: True if ``feed`` returns exactly the bytes it is given, so that ``Content-Length`` stays valid.
    identity: bool

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the worker and return bytes for the client (b"" if there are none yet).

        The output, including that of ``fail``, must not depend on how the input was split. Raises
        UpstreamMalformed.
        """
        ...

    def finish(self) -> bytes:
        """Return the remaining bytes after the body ended as its framing said.

        Raises UpstreamIncomplete if the engine had not said that it was finished, UpstreamMalformed if the
        whole body is not what the engine sends.
        """
        ...

    def fail(self, error: GatewayError) -> bytes:
        """Return the dialect's in-band error for a failure after the status was sent.

        Complete events that arrived in one read with a broken one come first. b"" means that the dialect has
        no in-band error, and the reply is then cut off; or, if ``facts.ending`` is set, that the reply is
        complete.
        """
        ...


class Format(Protocol[R]):
    """The request path of one engine dialect; ``R`` is the format's own request type."""

    #: Registry key, metrics label and value of settings: ``[a-z][a-z0-9_-]*``.
    name: str
    #: What a worker must offer, compared with WorkerInfo.capability; any of several, with ANY_OF between.
    capability: str

    def parse(self, body: bytes, headers: Headers) -> R:
        """Read a request. Raises InvalidRequest, and nothing else, on any bytes."""
        ...

    def project(self, request: R) -> Projection:
        """Return what routing, ids and metrics may know. Cheap; raises nothing."""
        ...

    def upstream(self, request: R, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        """Return the request for the worker: the client's bytes, changed only where an id must be set, or
        what the engine reads in the body and the client named in a header.
        """
        ...

    def abort(self, worker: WorkerView, request: R, ids: Ids) -> Sequence[UpstreamRequest]:
        """Return the requests that stop exactly this exchange; () if closing the connection does.

        With ``ids.parts`` only those prompts; () if the engine does not number its prompts.
        """
        ...

    def reader(self, request: R, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        """Return the reader for a reply with this head, whatever its status and content type are."""
        ...

    def render(self, error: GatewayError) -> ErrorReply:
        """Return the dialect's error reply for any GatewayError: JSON, ``application/json``."""
        ...
