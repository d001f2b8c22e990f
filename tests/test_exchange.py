"""The record of an exchange: only legal moves, exact times, and an end that stays."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Aborted, Cancelled, GatewayError, NoWorker, UpstreamIncomplete
from gateway.exchange import (
    ENDED,
    TRANSITIONS,
    ExchangeEvent,
    ExchangeRecord,
    ExchangeState,
    Gaps,
    IllegalTransition,
)

#: Written by hand from the design, so that a change of the product's table shows.
LEGAL = {
    (ExchangeState.PENDING, ExchangeEvent.DISPATCH): ExchangeState.DISPATCHED,
    (ExchangeState.PENDING, ExchangeEvent.FAIL): ExchangeState.FAILED,
    (ExchangeState.PENDING, ExchangeEvent.CANCEL): ExchangeState.CANCELLED,
    (ExchangeState.DISPATCHED, ExchangeEvent.RETRY): ExchangeState.PENDING,
    (ExchangeState.DISPATCHED, ExchangeEvent.DATA): ExchangeState.STREAMING,
    (ExchangeState.DISPATCHED, ExchangeEvent.FAIL): ExchangeState.FAILED,
    (ExchangeState.DISPATCHED, ExchangeEvent.CANCEL): ExchangeState.CANCELLED,
    (ExchangeState.STREAMING, ExchangeEvent.DATA): ExchangeState.STREAMING,
    (ExchangeState.STREAMING, ExchangeEvent.FINISH): ExchangeState.COMPLETED,
    (ExchangeState.STREAMING, ExchangeEvent.FAIL): ExchangeState.FAILED,
    (ExchangeState.STREAMING, ExchangeEvent.CANCEL): ExchangeState.CANCELLED,
    (ExchangeState.COMPLETED, ExchangeEvent.CANCEL): ExchangeState.COMPLETED,
    (ExchangeState.FAILED, ExchangeEvent.CANCEL): ExchangeState.FAILED,
    (ExchangeState.CANCELLED, ExchangeEvent.CANCEL): ExchangeState.CANCELLED,
}

#: The shortest way into each state.
WAYS = {
    ExchangeState.PENDING: (),
    ExchangeState.DISPATCHED: (ExchangeEvent.DISPATCH,),
    ExchangeState.STREAMING: (ExchangeEvent.DISPATCH, ExchangeEvent.DATA),
    ExchangeState.COMPLETED: (ExchangeEvent.DISPATCH, ExchangeEvent.DATA, ExchangeEvent.FINISH),
    ExchangeState.FAILED: (ExchangeEvent.FAIL,),
    ExchangeState.CANCELLED: (ExchangeEvent.CANCEL,),
}


def record_in(state: ExchangeState, *, stream: bool = True) -> ExchangeRecord:
    record = ExchangeRecord("echo", "/generate", 10.0, (0.1, 0.2))
    record.stream = stream
    for event in WAYS[state]:
        record.apply(event)
    assert record.state is state
    return record


#: What is worked out of the rest.
PROPERTIES = ("elapsed", "error_type", "ttft")


def snapshot(record: ExchangeRecord) -> dict[str, object]:
    """All attributes; those of a compiled object are in no ``vars``."""
    names = [name for name in dir(record) if not name.startswith("__") and name not in PROPERTIES]
    values = {name: getattr(record, name, None) for name in names}
    return {name: value for name, value in values.items() if not callable(value)}


@pytest.mark.parametrize(("state", "event"), [*product(ExchangeState, ExchangeEvent)])
def test_every_state_with_every_event(state: ExchangeState, event: ExchangeEvent) -> None:
    """A legal event leads where the design says; an illegal one raises and changes nothing."""
    record = record_in(state)
    before = snapshot(record)
    following = LEGAL.get((state, event))
    if following is not None:
        record.apply(event)
        assert record.state is following
    else:
        with pytest.raises(IllegalTransition, match=f"{event} in state {state}"):
            record.apply(event)
        assert snapshot(record) == before


@pytest.mark.parametrize(("state", "event"), [*product(ExchangeState, ExchangeEvent)])
def test_end_with_every_event(state: ExchangeState, event: ExchangeEvent) -> None:
    """``end`` moves as ``on`` does, and what it may not end keeps no trace of the attempt."""
    record = record_in(state)
    before = snapshot(record)
    following = LEGAL.get((state, event))
    if following is None:
        with pytest.raises(IllegalTransition):
            record.end(event, 11.0, NoWorker("none"))
        assert snapshot(record) == before
    elif following in ENDED and state not in ENDED:
        record.end(event, 11.0, NoWorker("none"))
        assert record.state is following
        assert record.ended_at == 11.0


def test_request_refused_before_it_is_parsed_counts_as_unary() -> None:
    """Metrics and the log take the type of a request from its record, parsed or not."""
    record = ExchangeRecord("echo", "/generate", 10.0, (0.1, 0.2))
    record.end(ExchangeEvent.FAIL, 11.0, GatewayError("refused"))
    assert not record.stream


def test_table_names_every_state() -> None:
    """No state is without a row, and the terminal ones accept nothing but a late cancel."""
    assert set(TRANSITIONS) == set(ExchangeState)
    assert {state for state in ExchangeState if set(TRANSITIONS[state]) == {ExchangeEvent.CANCEL}} == ENDED


def test_table_cannot_be_written() -> None:
    """Nobody adds a transition at run time."""
    with pytest.raises(TypeError):
        TRANSITIONS[ExchangeState.PENDING] = {}  # type: ignore[index]


@pytest.mark.parametrize("state", sorted(ENDED))
def test_late_cancel_changes_nothing(state: ExchangeState) -> None:
    """A disconnect after the end does not turn a completed exchange into a cancelled one."""
    record = record_in(ExchangeState.STREAMING)
    record.committed, record.status = True, 200
    how = {
        ExchangeState.COMPLETED: ExchangeEvent.FINISH,
        ExchangeState.FAILED: ExchangeEvent.FAIL,
        ExchangeState.CANCELLED: ExchangeEvent.CANCEL,
    }[state]
    record.end(how, 11.0)
    before = snapshot(record)
    record.end(ExchangeEvent.CANCEL, 12.0, Cancelled("the client left"))
    assert snapshot(record) == before


@pytest.mark.parametrize(
    ("committed", "error", "status"),
    [
        (False, None, None),
        (True, None, 200),
        (False, NoWorker("none"), 503),
        (True, UpstreamIncomplete("broke off"), 200),
        (False, UpstreamIncomplete("broke off"), 502),
        (False, Cancelled("left"), 499),
        (True, Cancelled("left"), 499),
        (False, Aborted("aborted"), 499),
        (True, Aborted("aborted"), 200),
    ],
)
def test_status_at_the_end(committed: bool, error: GatewayError | None, status: int | None) -> None:
    """The status is what the client saw: the committed one, else the error's; 499 for one that left."""
    record = record_in(ExchangeState.STREAMING)
    record.committed = committed
    record.status = 200 if committed else None
    record.end(ExchangeEvent.FINISH if error is None else ExchangeEvent.FAIL, 11.0, error)
    assert record.status == status
    assert record.error is error


def test_error_type_of_an_exchange() -> None:
    """The gateway's own failure takes precedence over the error in a reply; a success has neither."""
    record = record_in(ExchangeState.STREAMING)
    assert record.error_type == ""
    record.reply_error = "overload"
    assert record.error_type == "overload"
    record.end(ExchangeEvent.FAIL, 11.0, NoWorker("none"))
    assert record.error_type == "unavailable"


# -- tokens


def test_first_tokens_make_no_gap() -> None:
    """However many come first, they stamp the first token and leave no gap."""
    record = record_in(ExchangeState.STREAMING)
    record.update_tokens(3, 11.0)
    assert (record.first_token_at, record.last_token_at, record.tokens) == (11.0, 11.0, 3)
    assert record.gaps is None


def test_later_tokens_of_a_stream_share_their_gap() -> None:
    """Tokens that come together each get an equal part of the time since the last ones."""
    record = record_in(ExchangeState.STREAMING)
    record.update_tokens(1, 11.0)
    record.update_tokens(5, 11.6)
    assert record.gaps is not None
    assert record.gaps.counts == [0, 4, 0]
    assert math.isclose(record.gaps.total, 0.6)
    assert (record.first_token_at, record.last_token_at, record.tokens) == (11.0, 11.6, 5)


def test_tokens_of_a_unary_reply_make_no_gaps() -> None:
    """A unary reply has no time between its tokens."""
    record = record_in(ExchangeState.STREAMING, stream=False)
    record.update_tokens(1, 11.0)
    record.update_tokens(9, 12.0)
    assert record.gaps is None
    assert record.tokens == 9


@pytest.mark.parametrize("tokens", [0, 3, 4])
def test_count_that_did_not_grow_changes_nothing(tokens: int) -> None:
    """The same count again, or a smaller one, is no news."""
    record = record_in(ExchangeState.STREAMING)
    record.update_tokens(4, 11.0)
    before = snapshot(record)
    record.update_tokens(tokens, 12.0)
    assert snapshot(record) == before
    assert record.gaps is None


@pytest.mark.parametrize(
    ("seconds", "slot"), [(0.0, 0), (0.1, 0), (0.100001, 1), (0.2, 1), (0.3, 2), (math.inf, 2)]
)
def test_gap_on_a_bound_counts_below_it(seconds: float, slot: int) -> None:
    """A bucket's bound is its largest value; what is over all bounds goes to the last slot."""
    gaps = Gaps((0.1, 0.2))
    gaps.add(seconds, 1)
    assert gaps.counts is not None
    assert gaps.counts.index(1) == slot


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), min_size=1))
def test_gaps_lose_nothing(observed: list[tuple[float, int]]) -> None:
    """Every token is in one bucket and every second in the total."""
    gaps = Gaps((0.01, 0.1, 1.0))
    for seconds, tokens in observed:
        gaps.add(seconds, tokens)
    assert gaps.counts is not None
    assert sum(gaps.counts) == sum(tokens for _, tokens in observed)
    assert math.isclose(gaps.total, sum(seconds for seconds, _ in observed), abs_tol=1e-9)


@pytest.mark.parametrize(("stream", "tokens", "ttft"), [(True, 3, 0.5), (True, 0, None), (False, 3, None)])
def test_times_of_an_ended_exchange(stream: bool, tokens: int, ttft: float | None) -> None:
    """When the first token of a unary reply was there nobody saw."""
    record = record_in(ExchangeState.STREAMING, stream=stream)
    record.update_tokens(tokens, 10.5)
    record.end(ExchangeEvent.FINISH, 12.0)
    assert (record.elapsed, record.ttft) == (2.0, ttft)
