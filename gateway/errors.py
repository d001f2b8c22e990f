"""The failures a client can meet: one class per kind, with its code, its status and its source.

Owns: which kinds exist and what each means. Must never enter: rendering (a format's job),
logging, I/O, third-party packages.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Source(StrEnum):
    """The side that is at fault."""

    DOWNSTREAM = "downstream"
    GATEWAY = "gateway"
    UPSTREAM = "upstream"


class GatewayError(Exception):
    """A failure of one exchange.

    ``code`` is snake_case and a metric label, ``status`` the HTTP status before commit, ``source`` the side
    at fault, ``error_type`` the label of ``requests_total``. ``message`` is sent to the client:
    it contains no path, no address of a worker and no secret; ``cause`` is for the log, which contains its
    type. ``retry_after`` is in seconds. ``rule`` names what refused a request to protect workers, ``limit``
    the configured limit that was reached; both have a fixed set of values, as they are metric labels.
    """

    code = "internal"
    status = 500
    source = Source.GATEWAY
    error_type = "internal"
    retry_after: int | None = None
    rule: str | None = None
    limit: str | None = None

    def __init__(self, message: str, *, cause: BaseException | None = None, limit: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        if limit is not None:
            self.limit = limit


class InvalidRequest(GatewayError):
    """The body or a header is invalid. ``param`` names the field at fault, if there is one.

    ``rule``, in snake_case, is set if the format refused an input that is known to crash its engine; None for
    an ordinary mistake.
    """

    code = "invalid_request"
    status = 400
    source = Source.DOWNSTREAM
    error_type = "validation"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        rule: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message, cause=cause)
        self.param = param
        self.rule = rule


class Unauthorized(GatewayError):
    """The request has no key, or none that is valid for the route."""

    code = "unauthorized"
    status = 401
    source = Source.DOWNSTREAM
    error_type = "validation"


class MethodNotAllowed(GatewayError):
    """An inference route does not have this method. No exchange begins."""

    code = "method_not_allowed"
    status = 405
    source = Source.DOWNSTREAM
    error_type = "validation"


class RequestTooLarge(GatewayError):
    """The body is over the configured limit."""

    code = "request_too_large"
    status = 413
    source = Source.DOWNSTREAM
    error_type = "validation"
    limit = "body"


class BodyTimeout(GatewayError):
    """The request's body stopped arriving, or arrived too slowly."""

    code = "body_timeout"
    status = 408
    source = Source.DOWNSTREAM
    error_type = "validation"
    limit = "body_time"


class MetadataTooLarge(GatewayError):
    """The request's metadata headers are over a limit."""

    code = "metadata_too_large"
    status = 431
    source = Source.DOWNSTREAM
    error_type = "validation"
    limit = "metadata"


class PoisonedRequest(GatewayError):
    """Two workers died while they ran this body (gateway.proxy.query_of_death)."""

    code = "poisoned_request"
    status = 422
    source = Source.DOWNSTREAM
    error_type = "validation"
    rule = "poison_window"


class TooLong(NamedTuple):
    """The tokens of a request for which no worker has room.

    ``limit`` is the most that one worker allows; ``prompt`` and ``reply`` are what the request has and asks
    for. Of a batch they are those of the prompt that is longest with its reply.
    """

    limit: int
    prompt: int
    reply: int

    @property
    def of_prompt(self) -> bool:
        """True if the prompt alone leaves no room for a reply."""
        return self.prompt >= self.limit

    @property
    def actual(self) -> int:
        """The number that does not fit in the limit."""
        return self.prompt if self.of_prompt else self.prompt + self.reply


class ContextLength(GatewayError):
    """The prompt, alone or with the reply that is asked for, is longer than every worker allows."""

    code = "context_length"
    status = 400
    source = Source.DOWNSTREAM
    error_type = "context_length"
    numbers: TooLong | None = None

    @classmethod
    def of(cls, numbers: TooLong) -> ContextLength:
        """Return the error with these numbers, in the words of no engine."""
        wanted = "" if numbers.of_prompt else f" and {numbers.reply} are wanted for the reply"
        error = cls(
            f"the maximum context length is {numbers.limit} tokens, but the prompt has {numbers.prompt}"
            f"{wanted}; please shorten it"
        )
        error.numbers = numbers
        return error


class UnknownModel(GatewayError):
    """No worker of this format serves the named model."""

    code = "unknown_model"
    status = 404
    source = Source.DOWNSTREAM
    error_type = "not_found"


class NoWorker(GatewayError):
    """No worker is usable at the moment; a retry may succeed."""

    code = "no_worker"
    status = 503
    error_type = "unavailable"
    retry_after = 1


class LoopDetected(GatewayError):
    """The request has passed through this gateway before: one of its workers leads back to it."""

    code = "loop_detected"
    status = 508
    error_type = "internal"


class Overloaded(GatewayError):
    """A configured limit on concurrent requests is reached. The status can be configured."""

    code = "overloaded"
    status = 503
    error_type = "overload"
    retry_after = 1


class OutOfSockets(GatewayError):
    """The gateway may open no more sockets; no worker is at fault. Its status is that of Overloaded."""

    code = "out_of_sockets"
    status = 503
    error_type = "overload"
    retry_after = 1
    limit = "sockets"


class OutOfMemory(GatewayError):
    """The gateway has no memory for the request; neither its client nor a worker is at fault."""

    code = "out_of_memory"
    status = 503
    error_type = "unavailable"
    retry_after = 1


class Draining(GatewayError):
    """The gateway is shutting down and accepts no new requests."""

    code = "draining"
    status = 503
    error_type = "unavailable"
    retry_after = 1


class ConnectFailed(GatewayError):
    """No connection to a worker could be made. Nothing was sent, so another worker may be tried."""

    code = "connect_failed"
    status = 502
    source = Source.UPSTREAM
    error_type = "unavailable"


class UpstreamIncomplete(GatewayError):
    """The worker's reply ended before it was complete."""

    code = "upstream_incomplete"
    status = 502
    source = Source.UPSTREAM


class NotReceived(UpstreamIncomplete):
    """A reused connection broke and the worker's TCP acknowledged no byte of the request."""

    code = "not_received"


class UpstreamMalformed(GatewayError):
    """The worker's reply is not one that its engine sends."""

    code = "upstream_malformed"
    status = 502
    source = Source.UPSTREAM


class UpstreamTimeout(GatewayError):
    """The time limit named by ``limit`` was reached before the worker's reply was complete."""

    code = "upstream_timeout"
    status = 504
    source = Source.UPSTREAM
    error_type = "response_timeout"


class WaitTimeout(GatewayError):
    """The time limit of a request was reached while it was queued for a worker. No worker is at fault."""

    code = "wait_timeout"
    status = 504
    error_type = "response_timeout"


class ReplyUnread(GatewayError):
    """The client did not read its reply for longer than allowed; its connection is closed without an error.

    Or the time limit of the request was reached while the client did not read.
    """

    code = "reply_unread"
    status = 408
    source = Source.DOWNSTREAM
    error_type = "response_timeout"
    limit = "unread"


class ProcessDied(GatewayError):
    """One of several processes of the gateway died while it ran exchanges. Appears in metrics only."""

    code = "process_died"


class Cancelled(GatewayError):
    """The client disconnected. Never sent: 499 appears in logs and metrics only."""

    code = "cancelled"
    status = 499
    source = Source.DOWNSTREAM
    error_type = "cancelled"


class Aborted(GatewayError):
    """An abort call ended the exchange.

    Either no worker had it yet, or its engine has no abort and the worker's connection was closed.
    """

    code = "aborted"
    status = 499
    source = Source.DOWNSTREAM
    error_type = "cancelled"


_ERROR_TYPES = {
    404: "not_found",
    429: "overload",
    499: "cancelled",
    501: "not_implemented",
    503: "unavailable",
    504: "response_timeout",
    529: "overload",
}


def error_type_of(status: int) -> str:
    """Return the ``error_type`` label of an engine's status, of its reply or inside a 200; "" below 400."""
    if status < 400:
        return ""
    return _ERROR_TYPES.get(status, "validation" if status < 500 else "internal")


def own_fault(cause: Exception) -> GatewayError:
    """Return the failure of a request that a fault of the gateway itself ended."""
    if isinstance(cause, MemoryError):
        return OutOfMemory("the gateway is out of memory; please try again", cause=cause)
    return GatewayError("internal error of the gateway", cause=cause)


def drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of ``error`` and its causes, whose frames keep alive all that they used."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
