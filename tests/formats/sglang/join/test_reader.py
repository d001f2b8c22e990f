"""A stream is joined into the reply that the engine gives without a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending, Headers, Ids, Reader, ReplyHead
from gateway.formats.worker_contract import WorkerInfo
from tests.formats.sglang.streams import (
    STATES,
    complete,
    cumulative,
    events,
    incremental,
    part,
)
from tests.formats.sglang.support import FORMAT, parsed, run, same
from tests.formats.support import DONE, EVENTS, HEX, View, compact, recorded_ending

STREAM: dict[str, Any] = {"input_ids": [1, 2, 3], "stream": True}


def view(mode: str | None) -> View:
    return View(info=WorkerInfo("sglang", "sglang_generate", True, stream_mode=mode))


def joining(
    request: dict[str, Any] = STREAM,
    *,
    mode: str | None = None,
    headers: Headers = EVENTS,
    status: int = 200,
    ids: Ids | None = None,
) -> Reader:
    return FORMAT.join(parsed(request), view(mode), ids or same(HEX), ReplyHead(status, headers))


def joined(stream: bytes, request: dict[str, Any] = STREAM, *, mode: str | None = None) -> Any:
    outcome = run(joining(request, mode=mode), [stream])
    assert outcome.error is None
    return json.loads(outcome.given)


def failure(stream: bytes, request: dict[str, Any] = STREAM) -> tuple[GatewayError | None, Ending | None]:
    reader = joining(request)
    outcome = run(reader, [stream])
    assert outcome.given == b""
    return outcome.error, recorded_ending(reader.facts, outcome.error)


@pytest.mark.parametrize("mode", [None, "incremental", "cumulative"])
@pytest.mark.parametrize("make", [incremental, cumulative])
def test_stream_joins_to_its_last_state_whatever_mode_the_worker_declares(
    make: Any, mode: str | None
) -> None:
    """The mode is detected from the events, so a worker restarted in another mode is read correctly."""
    assert joined(events(make(*STATES)), mode=mode) == STATES[-1]


def test_stop_token_that_is_counted_but_not_sent_leaves_the_mode_to_the_worker() -> None:
    """The Rust frontend counts two tokens and sends one id, the one it has sent before."""
    first, last = complete([5], "a"), complete([5], "a", {"type": "stop", "matched": 2})
    last["meta_info"]["completion_tokens"] = 2
    assert joined(events([first, last]), mode="cumulative") == last


def test_mode_of_a_stream_without_ids_is_detected_by_its_text() -> None:
    states = [{"text": text, "meta_info": {"id": "a"}} for text in ("one", "one two")]
    last = {"text": "one two three", "meta_info": {"id": "a", "finish_reason": {"type": "stop"}}}
    assert joined(events([*states, last])) == last
    parts = [{"text": text, "meta_info": {"id": "a"}} for text in ("one", " two")]
    assert joined(events([*parts, last | {"text": " three"}])) == last


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
    outcome = run(joining(mode="incremental"), [b"data: %b\n\ndata: %b\n\n" % (one, two) + DONE])
    assert outcome.given == (
        b'{"text":"\\u0061\\n","output_ids":[1,2],"meta_info":'
        b'{"finish_reason":{"type":"stop"},"completion_tokens":2,"x":[1e-7,184467440737095516160],"y":1.50}}'
    )


def test_time_of_sending_stays_that_of_the_first_event() -> None:
    documents = incremental(*STATES)
    documents[0]["meta_info"] = documents[0]["meta_info"] | {"response_sent_to_client_ts": 1.25}
    assert joined(events(documents))["meta_info"]["response_sent_to_client_ts"] == 1.25


def test_unknown_list_that_is_not_of_the_tokens_is_as_the_last_event_has_it() -> None:
    documents = incremental(*STATES)
    for place, document in enumerate(documents):
        document["meta_info"] = document["meta_info"] | {"stages": [place, "x", "y"]}
    assert joined(events(documents))["meta_info"]["stages"] == [3, "x", "y"]


def test_unknown_member_that_only_an_early_event_has_is_kept() -> None:
    documents = incremental(*STATES)
    documents[1] = documents[1] | {"note": {"a": 1}}
    assert joined(events(documents)) == STATES[-1] | {"note": {"a": 1}}


@pytest.mark.parametrize("place", [1, 2, 3])
def test_member_of_another_kind_than_before_is_malformed(place: int) -> None:
    documents = incremental(*STATES)
    documents[place] = documents[place] | {"text": ["not", "text"]}
    error, ending = failure(events(documents))
    assert isinstance(error, UpstreamMalformed)
    assert ending is Ending.MALFORMED


def test_long_stream_of_one_shape_joins_as_a_short_one() -> None:
    """Most of its events are read by a decoder made for their shape."""
    ids = [token % 11 for token in range(300)]
    states = [complete(ids[:count], "ab" * count) for count in range(1, 300)]
    last = complete(ids, "ab" * 300, {"type": "length", "length": 300})
    for state in (*states, last):
        del state["meta_info"]["custom_score"]
    reader = joining()
    stream = [b"data: %b\n\n" % compact(document) for document in incremental(*states, last)]
    assert json.loads(run(reader, [*stream, DONE]).given) == last
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
    run(reader, [b"data: %b\n\n" % compact(last), DONE])
    assert reader.facts.cached_tokens == 100


def abort(status: int, message: str, index: int = 0) -> dict[str, Any]:
    finish = {"type": "abort", "status_code": status, "message": message}
    return {"text": "", "output_ids": [], "meta_info": {"id": "a", "finish_reason": finish}, "index": index}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "no /srv/x/y"}}),
        (503, {"object": "error", "message": "no <path>", "type": "503", "param": None, "code": 503}),
    ],
)
def test_abort_with_a_status_joins_to_the_engines_error(status: int, body: dict[str, Any]) -> None:
    reader = joining()
    outcome = run(reader, [events([abort(status, "no /srv/x/y")])])
    assert (json.loads(outcome.given), reader.facts.error_status) == (body, status)
    assert reader.facts.ending is Ending.ENGINE_ABORT


@pytest.mark.parametrize(
    ("error", "body", "status"),
    [
        ({"message": "m", "code": 400}, {"message": "m", "code": 400}, 400),
        ({"message": "at /a/b.py", "code": 500}, {"message": "at <path>", "code": 500}, 500),
        ("text", "text", 500),
    ],
)
def test_error_event_joins_to_the_frontends_own_error(error: Any, body: Any, status: int) -> None:
    reader = joining()
    outcome = run(reader, [events([{"error": error}])])
    assert (json.loads(outcome.given), reader.facts.error_status) == ({"error": body}, status)
    assert reader.facts.ending is Ending.ERROR_EVENT


def test_tokens_that_were_lost_are_noticed() -> None:
    """The total at the end of an incremental stream must be the number of ids."""
    documents = incremental(*STATES)
    del documents[2]
    error, ending = failure(events(documents))
    assert isinstance(error, UpstreamMalformed)
    assert ending is Ending.MALFORMED


@pytest.mark.parametrize("rest", [b"data: {\n\n", events([STATES[0]]), b"\xff"])
def test_what_follows_the_end_is_ignored(rest: bytes) -> None:
    stream = events(incremental(*STATES))
    assert joined(stream[: -len(DONE)] + rest) == STATES[-1]
    assert joined(stream + rest) == STATES[-1]


def test_routing_data_becomes_a_fact_and_leaves_the_reply() -> None:
    documents = incremental(*STATES)
    documents[0] = {"routing_data": {"worker_id": 7}} | documents[0]
    reader = joining()
    assert json.loads(run(reader, [events(documents)]).given) == STATES[-1]
    assert reader.facts.routing_data == {"worker_id": 7}


def test_join_reader_gives_nothing_before_its_end() -> None:
    reader = joining()
    assert (reader.streaming, reader.identity) == (False, False)
    assert reader.feed(events(incremental(*STATES))) == b""
    assert reader.fail(UpstreamIncomplete("x")) == b""
