"""A stream is joined into the reply that the engine gives without a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Reader, ReplyHead
from gateway.formats.sglang.join import merged_sample
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.drive import ParsedExchange, drive
from gateway.testing.model import ModelExchange
from tests.contract.models.sglang import SglangModel
from tests.formats.sglang.streams import STATES, complete, cumulative, events, incremental
from tests.formats.sglang.support import FORMAT, parsed, same
from tests.formats.support import DONE, EVENTS, HEX, View, compact

STREAM: dict[str, Any] = {"input_ids": [1, 2, 3], "stream": True}


def joining(mode: str | None = None) -> Reader:
    worker = View(info=WorkerInfo("sglang", "sglang_generate", True, stream_mode=mode))
    return FORMAT.join(parsed(STREAM), worker, same(HEX), ReplyHead(200, EVENTS))


def joined(stream: bytes, mode: str | None = None) -> Any:
    outcome = drive(joining(mode), [stream])
    assert outcome.failure is None
    return json.loads(outcome.out)


@pytest.mark.parametrize("mode", [None, "incremental", "cumulative"])
def test_stream_joins_to_its_last_state_whatever_mode_the_worker_declares(mode: str | None) -> None:
    """The mode is detected from the events, so a worker restarted in another mode is read correctly."""
    for make in (incremental, cumulative):
        assert joined(events(make(*STATES)), mode) == STATES[-1]


def test_stop_token_that_is_counted_but_not_sent_leaves_the_mode_to_the_worker() -> None:
    """The Rust frontend counts two tokens and sends one id, the one it has sent before."""
    first, last = complete([5], "a"), complete([5], "a", {"type": "stop", "matched": 2})
    last["meta_info"]["completion_tokens"] = 2
    assert joined(events([first, last]), mode="cumulative") == last


def test_values_are_as_the_engine_spelled_them() -> None:
    """Integers over 64 bits, floats and escapes: text is joined, not values."""
    one = (
        b'{"text":"\\u0061","output_ids":[1],"meta_info":'
        b'{"finish_reason":null,"completion_tokens":1,"x":[1e-7]}}'
    )
    two = (
        b'{"text":"\\n","output_ids":[2],"meta_info":'
        b'{"finish_reason":{"type":"stop"},"completion_tokens":2,"x":[184467440737095516160],"y":1.50}}'
    )
    outcome = drive(joining(mode="incremental"), [b"data: %b\n\ndata: %b\n\n" % (one, two) + DONE])
    assert outcome.out == (
        b'{"text":"\\u0061\\n","output_ids":[1,2],"meta_info":'
        b'{"finish_reason":{"type":"stop"},"completion_tokens":2,"x":[1e-7,184467440737095516160],"y":1.50}}'
    )


def test_member_that_not_every_event_has_or_that_no_table_names_is_the_latest_there_is() -> None:
    """A list of unknown name too, unless it has an entry for each token."""
    documents = incremental(*STATES)
    documents[0]["meta_info"] = documents[0]["meta_info"] | {"response_sent_to_client_ts": 1.25}
    documents[1] = documents[1] | {"note": {"a": 1}}
    for place, document in enumerate(documents):
        document["meta_info"] = document["meta_info"] | {"stages": [place, "x", "y"]}
    meta = STATES[-1]["meta_info"] | {"response_sent_to_client_ts": 1.25, "stages": [3, "x", "y"]}
    assert joined(events(documents)) == STATES[-1] | {"note": {"a": 1}, "meta_info": meta}


@pytest.mark.parametrize("place", [1, 2, 3])
def test_member_of_another_kind_and_tokens_that_were_lost_are_malformed(place: int) -> None:
    """The total at the end of an incremental stream must be the number of ids."""
    odd = incremental(*STATES)
    odd[place] = odd[place] | {"text": ["not", "text"]}
    life = incremental(*STATES[:-1], complete([7, 8, 7, 9, 2], ' a\u00e9"\\\n', {"type": "length"}))
    for documents in (odd, life[: place - 1] + life[place:]):
        outcome = drive(joining(mode="incremental"), [events(documents)])
        assert (outcome.out, outcome.failure) == (b"", UpstreamMalformed)


@contextmanager
def long_way() -> Iterator[None]:
    """Do without the decoders that are made for events of one shape."""
    with mock.patch.object(merged_sample, "decoder_for", return_value=None):
        yield


@given(SglangModel("incremental").exchanges())
def test_short_way_and_long_way_give_the_same(exchange: ModelExchange) -> None:
    parsed = ParsedExchange(SglangModel("incremental"), exchange)
    with long_way():
        outcome = parsed.join(exchange.stream)
    assert parsed.join(exchange.stream) == outcome


@pytest.mark.parametrize("places", [range(6, 7), range(9)])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"finish_reason":null', b'"finish_reason":{"type":"stop"}'),
        (b'"text":"a",', b""),
        (b'"text":"a"', b'"text":"a","more":1'),
        (b'"text":"a"', b'"text":"a","error":null'),
        (b'"completion_tokens":', b'"completion_tokens":-'),
        (b'"prompt_tokens":3,', b""),
        (b'"cached_tokens":2,', b""),
        (b'"cached_tokens":2', b'"cached_tokens":99'),
        (b'"meta_info":{', b'"meta_info":[{'),
        (b"}}", b"}"),
    ],
)
def test_event_of_another_shape_is_read_like_any_other(old: bytes, new: bytes, places: range) -> None:
    """One among plain ones, or all of them."""
    life = [complete(list(range(count)), "a" * count) for count in range(1, 10)]
    life.append(complete(list(range(10)), "a" * 10, {"type": "length", "length": 10}))
    for state in life:
        del state["meta_info"]["custom_score"]
    stream = [b"data: %b\n\n" % compact(document) for document in incremental(*life)]
    assert json.loads(drive(joining(), [*stream, DONE]).out) == life[-1]
    for place in places:
        stream[place] = stream[place].replace(old, new)
    with long_way():
        outcome = drive(joining(), [*stream, DONE])
    assert drive(joining(), [*stream, DONE]) == outcome
