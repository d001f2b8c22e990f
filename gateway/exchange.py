"""The record of one exchange: its states, its transition table, its times and its outcome.

Owns: which state may follow which, and the record that metrics and logs are made from. Must never enter: I/O,
a clock of its own (times are passed in, in seconds of one monotonic clock), a dialect, third-party packages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from gateway.errors import Cancelled, GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending


class ExchangeState(StrEnum):
    """The state of an exchange."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    STREAMING = "streaming"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ExchangeEvent(StrEnum):
    """An event that may change the state of an exchange."""

    DISPATCH = "dispatch"
    RETRY = "retry"
    DATA = "data"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"


#: The events of each exchange. Python 3.11 takes three times as long to look them up on their class.
DISPATCH, DATA, FINISH = ExchangeEvent.DISPATCH, ExchangeEvent.DATA, ExchangeEvent.FINISH

_ENDS = {ExchangeEvent.FAIL: ExchangeState.FAILED, ExchangeEvent.CANCEL: ExchangeState.CANCELLED}
_LATE_CANCEL_IGNORED = {ExchangeEvent.CANCEL: None}

#: state -> event -> next state; None keeps the state; an absent event is illegal.
TRANSITIONS: Mapping[ExchangeState, Mapping[ExchangeEvent, ExchangeState | None]] = MappingProxyType(
    {
        ExchangeState.PENDING: {ExchangeEvent.DISPATCH: ExchangeState.DISPATCHED, **_ENDS},
        ExchangeState.DISPATCHED: {
            ExchangeEvent.RETRY: ExchangeState.PENDING,
            ExchangeEvent.DATA: ExchangeState.STREAMING,
            **_ENDS,
        },
        ExchangeState.STREAMING: {
            ExchangeEvent.DATA: None,
            ExchangeEvent.FINISH: ExchangeState.COMPLETED,
            **_ENDS,
        },
        ExchangeState.COMPLETED: _LATE_CANCEL_IGNORED,
        ExchangeState.FAILED: _LATE_CANCEL_IGNORED,
        ExchangeState.CANCELLED: _LATE_CANCEL_IGNORED,
    }
)

ENDED = frozenset({ExchangeState.COMPLETED, ExchangeState.FAILED, ExchangeState.CANCELLED})

#: Ending of a reply -> the ``error_type`` label, unless an error status in the reply says more.
ERROR_TYPES: Mapping[Ending, str] = MappingProxyType(
    {
        Ending.STOP: "",
        Ending.LENGTH: "",
        Ending.OTHER: "",
        Ending.CLIENT_ABORT: "",
        Ending.OPAQUE: "",
        Ending.ENGINE_ABORT: "internal",
        Ending.ERROR_EVENT: "internal",
        Ending.ERROR_STATUS: "internal",
        Ending.INCOMPLETE: "internal",
        Ending.MALFORMED: "internal",
    }
)
#: Failure -> the ending of the reply it broke. The failure of a request that no worker received has none.
_BROKEN: Mapping[type[GatewayError], Ending] = MappingProxyType(
    {UpstreamIncomplete: Ending.INCOMPLETE, UpstreamMalformed: Ending.MALFORMED}
)


class IllegalTransition(Exception):
    """An event that the state does not accept; the state has not changed."""


class Gaps:
    """The inter-token gaps of one exchange, counted in fixed buckets so that a long stream costs no memory.

    ``bounds`` are upper bounds in seconds, ascending; a gap above the last one counts in the overflow slot.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        """Observe ``seconds / tokens`` once for each of ``tokens`` tokens."""
        self.counts[bisect_left(self.bounds, seconds / tokens)] += tokens
        self.total += seconds


#: The ``operation`` label of the generate endpoints.
GENERATE = "generate"


class ExchangeRecord:
    """The record of one request and its complete response, filled in by its gateway.proxy.live.LiveExchange.

    Times are in seconds of the monotonic clock; ``accepted_at`` is when the head of the request was complete.
    ``status`` is what the client saw (499 if it disconnected first), None before commit. ``reply_error`` is
    the ``error_type`` of the status in a worker's reply, "" or None without an error; ``ending`` is None if
    no reply ended. An attribute is set when its phase is reached.
    """

    # Class attributes, as most exchanges never set most of these, and each assignment costs.
    state = ExchangeState.PENDING
    #: The ``operation`` label of its endpoint.
    operation = GENERATE
    gaps: Gaps | None = None
    stream = False
    committed = False
    attempts = 0
    tokens = 0
    request_bytes = 0
    reply_bytes = 0
    finish_reasons: tuple[str, ...] = ()
    public_id: str | None = None
    session: str | None = None
    model: str | None = None
    worker: str | None = None
    status: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    dispatched_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    error: GatewayError | None = None
    reply_error: str | None = None
    ending: Ending | None = None
    routing_data: Mapping[str, Any] | None = None

    def __init__(
        self, format_name: str, endpoint: str, accepted_at: float, gap_bounds: tuple[float, ...]
    ) -> None:
        self.format = format_name
        self.endpoint = endpoint
        self.accepted_at = accepted_at
        self._gap_bounds = gap_bounds

    def apply(self, event: ExchangeEvent) -> None:
        """Apply ``event``. Raises IllegalTransition, and changes nothing, if the table has no entry."""
        try:
            following = TRANSITIONS[self.state][event]
        except KeyError:
            raise IllegalTransition(f"{event} in state {self.state}") from None
        if following is not None:
            self.state = following

    def update_tokens(self, tokens: int, now: float) -> None:
        """Record that ``tokens`` tokens are known at ``now``; a count that did not grow changes nothing."""
        fresh = tokens - self.tokens
        if fresh <= 0:
            return
        if self.last_token_at is None:
            self.first_token_at = now
        elif self.stream:
            if self.gaps is None:
                self.gaps = Gaps(self._gap_bounds)
            self.gaps.add(now - self.last_token_at, fresh)
        self.last_token_at = now
        self.tokens = tokens

    def end(self, event: ExchangeEvent, now: float, error: GatewayError | None = None) -> None:
        """Enter a terminal state at ``now``, because of ``error`` (Cancelled: the client disconnected).

        Raises IllegalTransition. A late cancel of an exchange that has ended changes nothing.
        """
        ended = self.state in ENDED
        self.apply(event)
        if ended:
            return
        self.ended_at = now
        self.error = error
        if error is not None and self.ending is None:
            self.ending = _BROKEN.get(type(error))
        if isinstance(error, Cancelled):
            self.status = error.status
        elif error is not None and not self.committed:
            self.status = error.status

    @property
    def elapsed(self) -> float:
        """The seconds from acceptance to the end, of an exchange that has ended."""
        assert self.ended_at is not None, "the exchange has not ended"
        return self.ended_at - self.accepted_at

    @property
    def ttft(self) -> float | None:
        """The seconds from acceptance to the first token; None if that is not known.

        It is not known of a unary reply, which arrives in one piece.
        """
        if not self.stream or self.first_token_at is None:
            return None
        return self.first_token_at - self.accepted_at

    @property
    def error_type(self) -> str:
        """The ``error_type`` label: "" for a success from the client's point of view."""
        if self.error is not None:
            return self.error.error_type
        if self.reply_error or self.ending is None:
            return self.reply_error or ""
        return ERROR_TYPES[self.ending]
