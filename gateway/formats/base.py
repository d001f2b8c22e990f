"""What a format is: the protocols a plugin implements and the plain records that cross its border.

Owns: the contract between the one handler and every dialect. Must never enter: a dialect, I/O, a clock,
a third-party package. It is one page on purpose: all that the author of a format has to read.

The contract in prose (docs/writing-a-format.md has it by example, gateway.testing as tests). A format is a
stateless object, found through the entry-point group ``gateway.formats``; ``configured`` gives it settings of
its own at start-up. For one request the handler calls, in this order: ``parse`` (any bytes in; a request
object of the format's own type, or InvalidRequest), ``project`` (what routing may know), ``upstream`` (the
HTTP request for the chosen worker), ``reader`` (once the worker's status line and headers are known), the
reader's ``feed`` for each read and ``finish`` or ``fail`` at the end. ``join`` takes the place of ``reader``
where a stream is to become the reply without one. ``abort`` gives the requests that stop one exchange at the
engine, ``render`` turns a GatewayError into the dialect's error reply. All of them are synchronous, do no I/O
and keep nothing between requests. ``probes`` and ``identify`` tell what stands behind a URL, ``health`` and
``vital`` whether it takes requests now, ``loads`` and ``read_load`` how much it has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from gateway.errors import GatewayError
from gateway.formats.headers import Headers as Headers
from gateway.formats.headers import header as header

R = TypeVar("R")

#: Stands between capabilities of which a worker must offer any one.
ANY_OF = "|"


class Ids(NamedTuple):
    """The ids of one exchange, one entry per id it is filed under (several: a batch with a list of ids).

    ``public`` is what the client sees, ``dispatch`` what the engine sees, entry for entry. They are equal
    when the client's ids were safe to use. ``parts``, of what is to be aborted: only these of its prompts,
    by the numbers that the engine gives them under its one id; () = all that the ids stand for.
    """

    public: tuple[str, ...]
    dispatch: tuple[str, ...]
    parts: tuple[int, ...] = ()

    @property
    def private(self) -> bool:
        return self.public != self.dispatch


@dataclass(frozen=True, slots=True)
class Hints:
    """What only a policy may want to know of a request: one that goes by cached prefixes, ranks or urgency.

    None of the gateway's own policies does. ``priority`` has one sign for all engines: larger is more urgent,
    0 is ordinary. ``lora`` names an adapter, ``cache_salt`` the tenant whose cached prefixes may be shared,
    ``dp_rank`` a data-parallel rank. ``token_ids`` builds the prompt's ids, anew each time; of several
    prompts, the first. ``images`` is set where a prompt has any.
    """

    priority: int = 0
    lora: str | None = None
    cache_salt: str | None = None
    dp_rank: int | None = None
    token_ids: Callable[[], Sequence[int]] | None = None
    images: Images | None = None


class Projection(NamedTuple):
    """All that routing, ids and metrics may know of a request.

    ``ids`` are the ids the client named, () if none; ``ids_usable`` is False when the engine could not be
    given them as they are. ``id_member`` names the member of the body, a JSON object, where its dialect has a
    client's id; None where it has no such place. Two bodies that differ in it alone ask for the same.
    ``id_cuts``: where in the body this member stands, its comma included, if that was found out on the way.
    ``prompt_tokens`` counts prompt ids (None where only text or embeddings are known). ``max_tokens`` is what
    the client asked for, None if it left that open. ``model`` is None where the dialect has no such field or
    it is empty. ``samples`` is the number of replies asked for (prompts x n).

    ``hints`` reads the rest when, and only when, a policy wants it, anew each time. A tuple, as one is made
    for every request, and of all that cannot be changed a tuple is made fastest.
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


class Images(Protocol):
    """Finds the image tokens of a prompt, in order; None where they cannot be told apart for sure.

    ``block_size`` is the number of tokens in a block of the worker's cache. ``tower_lora``: the worker's
    adapter for this request changes how images are encoded.
    """

    def __call__(self, block_size: int = 16, *, tower_lora: bool = False) -> Sequence[ImageSpan] | None: ...


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """A stretch of image tokens in a prompt, and what tells its image from others (64 bits)."""

    offset: int
    length: int
    identity: int


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a format learned about a worker from its probes.

    ``capability`` equals the format's own when the worker can serve it; ``usable`` is False, with the
    reason a user needs, when it speaks the dialect but cannot serve (switched off, still starting, wrong
    key). ``context_length`` is in tokens. ``stream_mode`` is the dialect's word for how it streams.
    ``adapters`` are those of the ``models`` that are adapters on another of them. ``paused``: it said that it
    runs no requests until it is resumed, which its health answer does not tell.
    """

    engine: str
    capability: str
    usable: bool
    reason: str = ""
    version: str | None = None
    models: tuple[str, ...] = ()
    context_length: int | None = None
    stream_mode: str | None = None
    weight_version: str | None = None
    adapters: tuple[str, ...] = ()
    paused: bool = False


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One question to a worker. ``target`` is an absolute path, a URL's own prefix is put in front."""

    method: str
    target: str
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """The answer to a ProbeRequest: an HTTP status and the whole body."""

    status: int
    body: bytes


class Vital(StrEnum):
    """What the answer to a format's health question says of a worker."""

    GOOD = "good"  # takes requests now
    BUSY = "busy"  # lives, and takes none at the moment: paused, say
    BAD = "bad"


def vital_of(reply: ProbeReply) -> Vital:
    """As most engines answer: builds without the health route say 404, which shows life as well as 200."""
    return Vital.GOOD if reply.status in (200, 404) else Vital.BAD


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What an engine says of its load: requests it runs, requests that wait in it, whoever sent them.

    ``cache_usage`` is the share of its key-value cache that is taken, 0 to 1, of the fullest rank.
    """

    running: int
    waiting: int
    cache_usage: float | None = None


class WorkerView(Protocol):
    """What a format may know of the worker it writes to."""

    @property
    def prefix(self) -> bytes:
        """Path prefix of its URL, b"" or starting with a slash and not ending in one."""
        ...

    @property
    def authorization(self) -> bytes | None:
        """Value for ``Authorization`` that replaces the client's own, or None."""
        ...

    @property
    def info(self) -> WorkerInfo | None: ...


class UpstreamRequest(NamedTuple):
    """An HTTP request for a worker. ``headers`` hold neither Host nor Content-Length nor hop-by-hop lines.

    ``rest`` follows on ``body``: pieces of one that is so big that to put it together would take long.
    """

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    rest: Sequence[bytes | memoryview] = ()


class ReplyHead(NamedTuple):
    """Status and headers of a worker's final (not 1xx) response; names in lower case."""

    status: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """A whole error response in the dialect, ready to send; ``headers`` hold content-type and extras."""

    status: int
    headers: Headers
    body: bytes


class Ending(StrEnum):
    """How a reply ended, as its bytes tell; a label of metrics and a field of the log."""

    STOP = "stop"
    LENGTH = "length"
    OTHER = "other"  # finished for another reason, or several samples for different ones
    CLIENT_ABORT = "client_abort"
    ENGINE_ABORT = "engine_abort"  # a finish reason that carries an error status
    ERROR_EVENT = "error_event"  # an error inside a 200 stream
    ERROR_STATUS = "error_status"  # a status of 400 and over
    OPAQUE = "opaque"  # passed on unread
    INCOMPLETE = "incomplete"  # no terminal
    MALFORMED = "malformed"


@dataclass(slots=True)
class ReplyFacts:
    """What a reader has seen so far.

    ``tokens`` counts generated tokens over all samples and only grows. ``finish_reasons`` has one word per
    finished sample (``stop``, ``length``, ``abort`` ...). ``terminal``: the engine said all of the exchange
    is over. ``error_status`` is the HTTP-like code of an error the engine put *inside* a 200 (an error
    event, an abort with a status), else None. ``routing_data`` is what a router behind the worker's URL put
    into an event about its own choice, taken out of the payload.

    ``steps``: what is left to be done of a ``feed`` that gave nothing, as it takes long: to be run to its end
    before more is fed. What it yields is passed on, None is nothing; it raises what ``feed`` does.

    ``steps`` is what a ``feed`` that gave nothing left to be done, as it takes long: it is run to its end,
    a few milliseconds at a time, before more is fed. What it yields is passed on, None is nothing; it raises
    what ``feed`` does.

    ``ending`` is how a whole reply ended: set by ``finish``, or by ``fail`` where the engine had said all.
    For a reply that did not become whole the reader leaves it None: what a failure means for the ending is
    told from its class, by gateway.exchange and nobody else.
    """

    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    terminal: bool = False
    error_status: int | None = None
    ending: Ending | None = None
    routing_data: Mapping[str, Any] | None = None
    steps: Generator[bytes | None, None, None] | None = None


class Reader(Protocol):
    """Inspects, and if need be rewrites, the body of one upstream reply. Sans-IO, synchronous, no clock."""

    facts: ReplyFacts
    #: True: bytes are passed on as they come, so the status may leave before the first of them.
    streaming: bool
    #: True: the bytes given out are exactly the bytes taken in, so a Content-Length stays true.
    identity: bool

    def feed(self, data: bytes) -> bytes:
        """Upstream bytes in, downstream bytes out (b"" = nothing yet). Raises UpstreamMalformed.

        How the bytes were cut must not show in what is given out, ``fail`` included.
        """
        ...

    def finish(self) -> bytes:
        """The upstream body ended as its framing said. Returns what is still held.

        Raises UpstreamIncomplete when the engine had not said it was finished, UpstreamMalformed when the
        whole is not what the engine sends.
        """
        ...

    def fail(self, error: GatewayError) -> bytes:
        """In-band end for a failure after commit; b"" where there is none, so the reply must be cut.

        Whole events that came in one read with a broken one, and were not given out, come first.
        """
        ...


class Format(Protocol[R]):
    """One engine dialect. See the module's docstring for the order of the calls."""

    @property
    def name(self) -> str:
        """Registry key, metric label and the value that selects it in settings; ``[a-z][a-z0-9_-]*``."""
        ...

    @property
    def capability(self) -> str:
        """What a worker must offer, compared with WorkerInfo.capability; of several, ``ANY_OF`` between them,
        any."""
        ...

    @property
    def probes(self) -> Sequence[ProbeRequest]:
        """Questions that tell whether a URL speaks this dialect; cheap for an engine, safe on any server."""
        ...

    @property
    def health(self) -> ProbeRequest:
        """The cheapest question whose 200 means: takes requests now."""
        ...

    @property
    def loads(self) -> Sequence[ProbeRequest]:
        """Questions for a worker's load, cheap ones; the first that it answers is asked from then on."""
        ...

    def parse(self, body: bytes, headers: Headers) -> R:
        """Peek at a request. Raises InvalidRequest, and nothing else, on any bytes."""
        ...

    def project(self, request: R) -> Projection:
        """Total and cheap."""
        ...

    def upstream(self, request: R, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        """The request for the worker: the client's bytes, but for the id where it had to be set."""
        ...

    def abort(self, worker: WorkerView, request: R, ids: Ids) -> Sequence[UpstreamRequest]:
        """Requests that stop exactly this exchange; () where only closing the connection does.

        With ``ids.parts`` only those prompts of it; () where it has none that the engine numbers.
        """
        ...

    def reader(self, request: R, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        """The relay reader for a reply with this head, whatever its status and content type."""
        ...

    def join(self, request: R, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        """The join reader: folds a stream into the reply the engine gives to the same request without one.

        Its ``feed`` gives b"", its ``finish`` the whole body. Replies that are no stream pass as they are.
        """
        ...

    def configured(self, options: Mapping[str, str]) -> Format[R]:
        """This format with its own settings, by name. Raises ValueError, which names the option at fault."""
        ...

    def render(self, error: GatewayError) -> ErrorReply:
        """Total: every GatewayError as the dialect's own error reply, JSON with ``application/json``."""
        ...

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        """Read the answers to ``probes``, by target; one that is missing gave none. None: another dialect."""
        ...

    def vital(self, reply: ProbeReply) -> Vital:
        """Read the answer to ``health``; ``vital_of`` does for most engines."""
        ...

    def read_load(self, question: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
        """Read the answer to one of ``loads``; None: it does not tell."""
        ...

    def aborted_ids(self, body: bytes) -> AbortTarget:
        """What a client's own abort call names. Raises InvalidRequest."""
        ...

    def openapi(self) -> Mapping[str, Any]:
        """OpenAPI operation of the generate endpoint: summary, schemas of request and reply, examples."""
        ...


class Spelled(NamedTuple):
    """An engine's own name for a request: the one that its client called ``id``, at the route ``path`` (None:
    at the format's own endpoint), or of that only the prompt with the number ``part``."""

    id: str
    path: str | None = None
    part: int | None = None


@dataclass(frozen=True, slots=True)
class AbortTarget:
    """What an abort call is about: everything, or these public ids at any route, and what is spelled."""

    everything: bool = False
    ids: tuple[str, ...] = ()
    spelled: tuple[Spelled, ...] = ()


AnyFormat = Format[Any]


@runtime_checkable
class Stepwise(Protocol):
    """What a format offers beside the rest of its contract if it can read a big body bit by bit."""

    def parse_in_steps(self, body: bytes, headers: Headers) -> Generator[None, None, Any]:
        """What ``parse`` does, with the same result or error, with a yield every few milliseconds."""
        ...


@runtime_checkable
class ReleasesBody(Protocol):
    """What a format offers beside the rest of its contract if it can do without a request's body once that
    was sent."""

    def without_body(self, request: Any) -> Any:
        """The same request without its body, and without whatever keeps that alive, for ``reader``, ``join``
        and ``abort``."""
        ...


class RelayedRequest(Protocol):
    """A request of another inference route, as far as one must know it to stop it at its engine.

    ``member`` is the member of its body where its id stands, None: in none; the header ``X-Request-Id`` has
    it always. ``single``: it is one prompt, that is no list. ``fan``: it asks for several replies to each.
    ``searched``: its engine looks for them by requests of its own making.
    """

    @property
    def headers(self) -> Headers: ...

    @property
    def member(self) -> str | None: ...

    @property
    def single(self) -> bool: ...

    @property
    def fan(self) -> bool: ...

    @property
    def searched(self) -> bool: ...


@runtime_checkable
class StopsRelayed(Protocol):
    """What a format offers beside the rest of its contract if its engines can be told to stop a request of
    another inference route."""

    @property
    def capability(self) -> str: ...

    def abort_relayed(
        self, worker: WorkerView, path: str, request: RelayedRequest, ids: Ids
    ) -> Sequence[UpstreamRequest]:
        """As ``abort``, for the route at ``path``."""
        ...


class Elsewhere(NamedTuple):
    """Another path where an engine tells the same; ``read`` gives what its answer would have been as a JSON
    value, None for an answer of another shape."""

    target: str
    read: Callable[[bytes], Any]


@runtime_checkable
class TellsLoads(Protocol):
    """What a format offers beside the rest of its contract if its engines, by their version, tell their load
    at one path or at another."""

    @property
    def name(self) -> str: ...

    def elsewhere(self, target: bytes) -> Elsewhere | None:
        """Where an engine that lacks ``target``, a path and its query, tells what is asked for there."""
        ...
