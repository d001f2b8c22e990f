"""Decoders of ordinary events give the same result as the slow path."""

from __future__ import annotations

import msgspec
import pytest

from gateway.formats.sglang.join.event_decoder import EventDecoder, decoder_for
from gateway.formats.sglang.raw_members import parse_raw_event

TOP = ("text", "output_ids", "meta_info")
META = ("id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "output_token_logprobs")
PLAIN = (
    b'{"text":"a","output_ids":[7],"meta_info":{"id":"x","finish_reason":null,"prompt_tokens":3,'
    b'"completion_tokens":2,"cached_tokens":1,"output_token_logprobs":[[-0.5,7,null]]}}'
)


def decoder(top: tuple[str, ...] = TOP, meta: tuple[str, ...] = META) -> EventDecoder:
    found = decoder_for(top, meta)
    assert found is not None
    return found


def test_ordinary_event_is_decoded_at_once() -> None:
    kind = decoder()
    decoded = kind.decode(PLAIN)
    assert (kind.index(decoded), kind.total(decoded), kind.prompt(decoded)) == (0, 2, (3, 1))
    assert {name: bytes(take(decoded)) for name, take in kind.top_lists} == {
        "text": b'"a"',
        "output_ids": b"[7]",
    }
    assert [bytes(take(decoded)) for _, take in kind.meta_lists] == [b"[[-0.5,7,null]]"]
    assert [(name, take(decoded)) for name, take in kind.totals] == [("completion_tokens", 2)]


def test_plain_event_can_be_one_like_any_other() -> None:
    kind, slow = decoder(), parse_raw_event(PLAIN)
    assert slow is not None
    quick = kind.event(kind.decode(PLAIN))
    assert quick.meta == slow.meta
    assert quick.top == {name: value for name, value in slow.top.items() if name != "meta_info"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"finish_reason":null', b'"finish_reason":{"type":"stop"}'),
        (b'"text":"a",', b""),
        (b'"text":"a"', b'"text":"a","more":1'),
        (b'"completion_tokens":2', b'"completion_tokens":"2"'),
        (b'"meta_info":{', b'"meta_info":[{'),
        (b"}}", b"}"),
    ],
)
def test_any_other_event_is_left_to_the_slow_way(old: bytes, new: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoder().decode(PLAIN.replace(old, new))


@pytest.mark.parametrize("missing", ["prompt_tokens", "completion_tokens", "cached_tokens"])
def test_events_without_a_count_or_with_an_error_have_no_shape(missing: str) -> None:
    assert decoder_for(TOP, tuple(name for name in META if name != missing)) is None
    assert decoder_for((*TOP, "error"), META) is None
