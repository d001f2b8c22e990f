"""Streams are relayed event by event, with the facts of the engine, and never end cleanly without its end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import ReplyFacts
from gateway.testing.drive import drive
from tests.formats.dialects import BOTH, DIALECTS, Dialect
from tests.formats.sglang import support as sglang
from tests.formats.support import DONE, HEX, LOOSE_JSON, PRIVATE, compact
from tests.formats.vllm.support import chunk

SGLANG, VLLM = DIALECTS.values()
USAGE = compact({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}})
TOTAL = b'data: {"usage":%b,"choices":[]}\n\n' % USAGE


def facts_of(dialect: Dialect, *events: bytes, samples: int = 1) -> ReplyFacts:
    reader = dialect.reading(samples=samples)
    for event in events:
        assert reader.feed(event) == event
    return reader.facts


@BOTH
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_comments_and_fields_beside_data_are_relayed(dialect: Dialect, end: bytes) -> None:
    first, second, last = dialect.life
    stream = b": keep-alive\n\nevent: token\nid: 7\n" + first + b"retry: 5\n\n" + second + last + DONE
    stream = stream.replace(b"\n", end)
    outcome = drive(dialect.reading(), [stream])
    assert (outcome.out, outcome.facts.tokens, outcome.facts.terminal) == (stream, 3, True)


@BOTH
def test_done_without_a_terminal_is_kept_and_becomes_an_error(dialect: Dialect) -> None:
    reader = dialect.reading()
    assert reader.feed(dialect.life[0] + DONE) == dialect.life[0]
    with pytest.raises(UpstreamIncomplete) as caught:
        reader.finish()
    assert reader.fail(caught.value) == dialect.in_band(caught.value)


@BOTH
def test_bytes_after_done_are_dropped(dialect: Dialect) -> None:
    first, _, last = dialect.life
    outcome = drive(dialect.reading(), [last + DONE + first + b"junk", b"more junk\n\n"])
    assert outcome.out == last + DONE
    assert outcome == drive(dialect.reading(), [last + DONE])


@BOTH
@pytest.mark.parametrize("rest", [DONE[:-1], b"data: [DO"])
def test_last_bytes_without_a_blank_line_are_kept(dialect: Dialect, rest: bytes) -> None:
    complete = dialect.life[2] + rest
    assert drive(dialect.reading(), [complete]).out == complete


@BOTH
@pytest.mark.parametrize("broken", [b"data: {\n\n", b"data: \n\n"])
def test_events_before_a_malformed_one_are_sent_with_the_error(dialect: Dialect, broken: bytes) -> None:
    """So the cut of reads changes nothing. The ids in them are the client's."""
    first, second, last = dialect.life
    reader = dialect.reading(ids=PRIVATE)
    named = (first + second).replace(b'"a1"', b'"%b"' % HEX.encode())
    named = named.replace(b"generate-tokens-a", b"generate-tokens-%b" % HEX.encode())
    with pytest.raises(UpstreamMalformed) as caught:
        reader.feed(named + broken + last)
    assert reader.fail(caught.value) == named.replace(HEX.encode(), b"job-1") + dialect.in_band(caught.value)
    assert reader.facts.tokens == 2


ODD: dict[str, list[dict[str, Any]]] = {
    "sglang": [
        {"meta_info": None},
        {"meta_info": "x", "index": "y"},
        {"meta_info": {"completion_tokens": "5", "prompt_tokens": 1.5, "cached_tokens": {}}},
        {"index": [1], "text": 5},
        {},
    ],
    "vllm": [
        {"choices": None},
        {"choices": [None, 7, "x"]},
        {"choices": [{"index": "0", "finish_reason": 7, "token_ids": "ab"}]},
        {"choices": [{"token_ids": [None, "x"]}]},
        {"usage": 7, "choices": []},
        {"usage": {"prompt_tokens": "3", "prompt_tokens_details": 7}},
        {"usage": {"prompt_tokens_details": {"cached_tokens": "x"}}},
        {},
    ],
}


@BOTH
def test_object_of_a_surprising_shape_is_relayed(dialect: Dialect) -> None:
    for found in ODD[dialect.name]:
        facts_of(dialect, b"data: %b\n\n" % compact(found))


@BOTH
@pytest.mark.parametrize("value", LOOSE_JSON)
def test_event_that_only_pythons_json_reads_is_relayed_and_counted(dialect: Dialect, value: bytes) -> None:
    """A server that writes with it sends NaN for a log probability; the generation is not lost for that."""
    life = [event.replace(b"{", b'{"x":[%b,"y"],' % value, 1) for event in dialect.life]
    facts = facts_of(dialect, *life)
    assert (facts.tokens, facts.finish_reasons, facts.terminal) == (3, ["stop"], True)
    refused = dialect.reading()
    event = b'data: {"error":{"message":"m","x":%b,"code":400}}\n\n' % value
    assert (refused.feed(event), refused.facts.error_status) == (event, 400)


def test_unusual_types_do_not_hide_other_members() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": "2"}
    facts = facts_of(VLLM, chunk([1, 2], "stop", usage=usage, x="\ud800"))
    assert (facts.tokens, facts.finish_reasons, facts.prompt_tokens, facts.terminal) == (2, ["stop"], 3, True)


@pytest.mark.parametrize(
    ("finish", "word"),
    [
        (b'"stop"', "stop"),
        (b'{"type":7}', ""),
        (b"true", ""),
        (b'{"type":"length","status_code":"x"}', "length"),
    ],
)
def test_finish_reason_of_a_surprising_shape_still_finishes(finish: bytes, word: str) -> None:
    facts = facts_of(SGLANG, b'data: {"meta_info":{"finish_reason":%b,"completion_tokens":3}}\n\n' % finish)
    assert (facts.finish_reasons, facts.tokens, facts.terminal) == ([word], 3, True)


@BOTH
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_several_samples_are_over_when_each_is(dialect: Dialect, order: tuple[int, ...]) -> None:
    """A sample that finishes twice is counted once."""
    reader = dialect.reading(samples=3)
    for place, index in enumerate(order):
        assert not reader.facts.terminal
        reader.feed(dialect.event(1, index=index) + dialect.event(2, "length", index=index))
        reader.feed(dialect.event(2, "length", index=index, new=0))
        assert reader.facts.finish_reasons == ["length"] * (place + 1)
    assert (reader.facts.terminal, reader.facts.tokens) == (True, 6)


def test_prompts_of_a_batch_are_counted_once_each() -> None:
    reader = sglang.reading({"input_ids": [[1], [2]], "stream": True, "sampling_params": {"n": 2}})
    for index in range(4):
        reader.feed(sglang.event(1, index=index) + sglang.event(3, "stop", index=index))
    assert (reader.facts.terminal, reader.facts.tokens) == (True, 12)
    assert (reader.facts.prompt_tokens, reader.facts.cached_tokens) == (6, 4)


def test_stream_of_no_prompt_is_over_at_once() -> None:
    assert drive(sglang.reading({"text": [], "stream": True}), [DONE]).out == DONE


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=20))
def test_tokens_only_grow(steps: list[tuple[int, int]]) -> None:
    reader = SGLANG.reading(samples=4)
    highest = dict.fromkeys(range(4), 0)
    seen = 0
    for index, tokens in steps:
        reader.feed(sglang.event(tokens, index=index))
        highest[index] = max(highest[index], tokens)
        assert reader.facts.tokens >= seen
        seen = reader.facts.tokens
    assert seen == sum(highest.values())


def test_usage_of_the_engine_counts_where_it_is_the_total() -> None:
    """That of one sample tells of the prompt only; the total also counts ids left out of the events."""
    facts = facts_of(VLLM, chunk([1, 2]), chunk([]), chunk([3], "stop"), TOTAL)
    assert (facts.tokens, facts.prompt_tokens, facts.cached_tokens) == (3, 3, 1)
    usage = {"prompt_tokens": 3, "total_tokens": 90, "completion_tokens": 87}
    facts = facts_of(VLLM, chunk([1], usage=usage), samples=2)
    assert (facts.tokens, facts.prompt_tokens) == (1, 3)
    text = b'data: {"choices":[{"index":0,"finish_reason":"stop","text":"ab"}]}\n\n'
    assert facts_of(VLLM, text, TOTAL).tokens == 2
    assert drive(VLLM.reading(), [text + TOTAL[:-2]]).out == text + TOTAL[:-2]
