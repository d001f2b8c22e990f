"""The taxonomy of failures a caller can meet: one class per kind, its code, status and culprit.

Owns: which kinds exist and what each means. Must never enter: rendering (a format's job),
logging, I/O, third-party packages.
"""

from __future__ import annotations

from enum import StrEnum


class Source(StrEnum):
    """Who is at fault."""

    DOWNSTREAM = "downstream"
    GATEWAY = "gateway"
    UPSTREAM = "upstream"


class GatewayError(Exception):
    """A failure of one exchange.

    ``code`` is snake_case and a metric label, ``status`` the HTTP status before commit, ``source`` the
    culprit, ``error_type`` the ``error_type`` label of ``requests_total``. ``message`` reaches the caller:
    it holds no path, no address of a worker and no secret; ``cause`` is for the log, which says its type.
    ``retry_after`` is in seconds. ``rule`` names, for a refusal that protects workers, what refused it, and
    ``limit`` the configured limit that was hit: each one of a fixed few words, as it is a metric label.
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
    """The body or a header cannot be served as it is. ``param`` names the field, if one is at fault.

    ``rule`` is set where a format's shield refused an input that is known to kill its engine, in snake_case;
    None: an ordinary mistake.
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
    """The request carries no key, or none that opens the route."""

    code = "unauthorized"
    status = 401
    source = Source.DOWNSTREAM
    error_type = "validation"


class MethodNotAllowed(GatewayError):
    """The path is an inference route's, the method none of its own. Told only; no exchange begins."""

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
    """The request's body stopped coming."""

    code = "body_timeout"
    status = 408
    source = Source.DOWNSTREAM
    error_type = "validation"
    limit = "body_time"


class MetadataTooLarge(GatewayError):
    """The request's metadata headers are over their limit."""

    code = "metadata_too_large"
    status = 431
    source = Source.DOWNSTREAM
    error_type = "validation"
    limit = "metadata"


class PoisonedRequest(GatewayError):
    """The same body was running on several workers as each of them died."""

    code = "poisoned_request"
    status = 422
    source = Source.DOWNSTREAM
    error_type = "validation"
    rule = "poison_window"


class UnknownModel(GatewayError):
    """No worker of this format serves the named model."""

    code = "unknown_model"
    status = 404
    source = Source.DOWNSTREAM
    error_type = "not_found"


class NoWorker(GatewayError):
    """No usable worker at the moment; worth another try."""

    code = "no_worker"
    status = 503
    error_type = "unavailable"
    retry_after = 1


class Overloaded(GatewayError):
    """A configured limit on requests at once is reached. The status may be configured to be another."""

    code = "overloaded"
    status = 503
    error_type = "overload"
    retry_after = 1


class OutOfSockets(GatewayError):
    """The gateway may open no more sockets; says nothing about any worker. Its status is that of Overloaded,
    whatever that is configured to be."""

    code = "out_of_sockets"
    status = 503
    error_type = "overload"
    retry_after = 1
    limit = "sockets"


class Draining(GatewayError):
    """The gateway is shutting down and takes no new requests."""

    code = "draining"
    status = 503
    error_type = "unavailable"
    retry_after = 1


class ConnectFailed(GatewayError):
    """A worker could not be reached. Nothing was sent to it, so another worker may be tried."""

    code = "connect_failed"
    status = 502
    source = Source.UPSTREAM
    error_type = "unavailable"


class UpstreamIncomplete(GatewayError):
    """The worker's reply ended before it was whole."""

    code = "upstream_incomplete"
    status = 502
    source = Source.UPSTREAM


class NotReceived(UpstreamIncomplete):
    """A reused connection died and its peer never acknowledged a byte of the request."""

    code = "not_received"


class UpstreamMalformed(GatewayError):
    """The worker's reply is not what its engine ever sends."""

    code = "upstream_malformed"
    status = 502
    source = Source.UPSTREAM


class UpstreamTimeout(GatewayError):
    """A configured time limit was hit before the worker's reply was whole; ``limit`` says which."""

    code = "upstream_timeout"
    status = 504
    source = Source.UPSTREAM
    error_type = "response_timeout"


class WaitTimeout(GatewayError):
    """All the time that a request may take was over while no worker had it: it waited in line for one. Says
    nothing about any worker."""

    code = "wait_timeout"
    status = 504
    error_type = "response_timeout"


class ReplyUnread(GatewayError):
    """The client left its reply unread for longer than it may. It is told nothing: its connection is cut.

    Or all the time that its request may take was over while it did.
    """

    code = "reply_unread"
    status = 408
    source = Source.DOWNSTREAM
    error_type = "response_timeout"
    limit = "unread"


class ProcessDied(GatewayError):
    """One of several processes of the gateway died under its exchanges. Seen in metrics only."""

    code = "process_died"


class Cancelled(GatewayError):
    """The client left. Never rendered: 499 exists in logs and metrics only."""

    code = "cancelled"
    status = 499
    source = Source.DOWNSTREAM
    error_type = "cancelled"


class Aborted(GatewayError):
    """An abort call ended the exchange, and only closing its connection could."""

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
    """The ``error_type`` label for an engine's own status, in a status line or inside a 200; "" below 400."""
    if status < 400:
        return ""
    return _ERROR_TYPES.get(status, "validation" if status < 500 else "internal")


def drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of ``error`` and its causes, whose frames keep alive all that they used."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
