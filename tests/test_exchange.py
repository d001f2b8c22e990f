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

#: State, and the events it accepts, each with the state it leads to. Written by hand from the design, so that
#: a change of the product's table shows.
DESIGN = """
pending    dispatch=dispatched fail=failed cancel=cancelled
dispatched retry=pending data=streaming fail=failed cancel=cancelled
streaming  data=streaming finish=completed fail=failed cancel=cancelled
completed  cancel=completed
failed     cancel=failed
cancelled  cancel=cancelled
"""
LEGAL = {
    (ExchangeState(state), ExchangeEvent(event)): ExchangeState(following)
    for state, *row in map(str.split, DESIGN.strip().splitlines())
    for event, following in (each.split("=") for each in row)
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
    """A legal event leads where the design says; an illegal one, or a late cancel, changes nothing."""
    following = LEGAL.get((state, event))
    applied, ended = record_in(state), record_in(state)
    ended.committed, ended.status = state in ENDED, 200
    before = snapshot(applied), snapshot(ended)
    if following is None:
        with pytest.raises(IllegalTransition, match=f"{event} in state {state}"):
            applied.apply(event)
        with pytest.raises(IllegalTransition):
            ended.end(event, 11.0, NoWorker("none"))
        assert (snapshot(applied), snapshot(ended)) == before
        return
    applied.apply(event)
    assert applied.state is following
    if following in ENDED:
        ended.end(event, 11.0, Cancelled("the client left"))
        assert ended.state is following
        assert (snapshot(ended) == before[1]) is (state in ENDED)
        assert ended.ended_at == (None if state in ENDED else 11.0)


def test_request_refused_before_it_is_parsed_counts_as_unary() -> None:
    """Metrics and the log take the type of a request from its record, parsed or not."""
    record = ExchangeRecord("echo", "/generate", 10.0, (0.1, 0.2))
    record.end(ExchangeEvent.FAIL, 11.0, GatewayError("refused"))
    assert not record.stream


def test_table_names_every_state_and_cannot_be_written() -> None:
    """The terminal states accept nothing but a late cancel."""
    assert set(TRANSITIONS) == set(ExchangeState)
    assert {state for state in ExchangeState if set(TRANSITIONS[state]) == {ExchangeEvent.CANCEL}} == ENDED
    with pytest.raises(TypeError):
        TRANSITIONS[ExchangeState.PENDING] = {}  # type: ignore[index]


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


def test_error_type_is_that_of_the_gateways_own_failure_or_else_of_the_reply() -> None:
    record = record_in(ExchangeState.STREAMING)
    assert record.error_type == ""
    record.reply_error = "overload"
    assert record.error_type == "overload"
    record.end(ExchangeEvent.FAIL, 11.0, NoWorker("none"))
    assert record.error_type == "unavailable"


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_after_the_first_ones_share_their_gap_in_a_stream(stream: bool) -> None:
    """The first tokens leave no gap, however many they are, and a unary reply has no time between tokens."""
    record = record_in(ExchangeState.STREAMING, stream=stream)
    record.update_tokens(3, 11.0)
    assert (record.first_token_at, record.last_token_at, record.tokens) == (11.0, 11.0, 3)
    assert record.gaps is None
    record.update_tokens(7, 11.6)
    assert (record.first_token_at, record.last_token_at, record.tokens) == (11.0, 11.6, 7)
    if not stream:
        assert record.gaps is None
        return
    assert record.gaps is not None
    assert record.gaps.counts == [0, 4, 0]
    assert math.isclose(record.gaps.total, 0.6)


@pytest.mark.parametrize("tokens", [0, 3, 4])
def test_count_that_did_not_grow_changes_nothing(tokens: int) -> None:
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
    """What is over all bounds goes to the last slot."""
    gaps = Gaps((0.1, 0.2))
    gaps.add(seconds, 1)
    assert gaps.counts.index(1) == slot


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), min_size=1))
def test_gaps_lose_no_token_and_no_second(observed: list[tuple[float, int]]) -> None:
    gaps = Gaps((0.01, 0.1, 1.0))
    for seconds, tokens in observed:
        gaps.add(seconds, tokens)
    assert sum(gaps.counts) == sum(tokens for _, tokens in observed)
    assert math.isclose(gaps.total, sum(seconds for seconds, _ in observed), abs_tol=1e-9)


@pytest.mark.parametrize(("stream", "tokens", "ttft"), [(True, 3, 0.5), (True, 0, None), (False, 3, None)])
def test_times_of_an_ended_exchange(stream: bool, tokens: int, ttft: float | None) -> None:
    """When the first token of a unary reply was there nobody saw."""
    record = record_in(ExchangeState.STREAMING, stream=stream)
    record.update_tokens(tokens, 10.5)
    record.end(ExchangeEvent.FINISH, 12.0)
    assert (record.elapsed, record.ttft) == (2.0, ttft)
