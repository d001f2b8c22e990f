"""A stream is joined into the reply that the engine gives without a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Reader, ReplyHead
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.drive import drive
from tests.formats.sglang.streams import (
    STATES,
    complete,
    cumulative,
    events,
    incremental,
    part,
)
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


def test_long_stream_of_one_shape_joins_as_a_short_one() -> None:
    """Most of its events are read by a decoder made for their shape."""
    ids = [token % 11 for token in range(300)]
    states = [complete(ids[:count], "ab" * count) for count in range(1, 300)]
    last = complete(ids, "ab" * 300, {"type": "length", "length": 300})
    for state in (*states, last):
        del state["meta_info"]["custom_score"]
    reader = joining()
    stream = [b"data: %b\n\n" % compact(document) for document in incremental(*states, last)]
    assert json.loads(drive(reader, [*stream, DONE]).out) == last
    assert reader.facts.tokens == 300


def test_event_with_other_counts_of_its_prompt_is_read_anew() -> None:
    """A shape alone does not make an event plain."""
    ids = list(range(9))
    documents = incremental(*(complete(ids[:count], "a" * count) for count in range(1, 10)))
    documents[6]["meta_info"] = documents[6]["meta_info"] | {"cached_tokens": 99}
    last = part(complete(ids, "a" * 9, {"type": "stop"}), complete(ids, "a" * 9))
    last["meta_info"] = last["meta_info"] | {"cached_tokens": 100}
    reader = joining()
    reader.feed(events(documents)[: -len(DONE)])
    assert reader.facts.cached_tokens == 2
    drive(reader, [b"data: %b\n\n" % compact(last), DONE])
    assert reader.facts.cached_tokens == 100
