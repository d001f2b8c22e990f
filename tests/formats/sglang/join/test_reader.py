"""A stream is joined into the reply that the engine gives without a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending, Headers, Ids, Reader, ReplyHead
from gateway.formats.worker_contract import WorkerInfo
from tests.formats.sglang import streams
from tests.formats.sglang.streams import (
    STATES,
    complete,
    cumulative,
    echo,
    echo_part,
    events,
    incremental,
    part,
)
from tests.formats.sglang.support import FORMAT, parsed, run, same
from tests.formats.support import DONE, EVENTS, HEX, JSON, View, compact, recorded_ending

STREAM: dict[str, Any] = {"input_ids": [1, 2, 3], "stream": True}
TWO: dict[str, Any] = {"input_ids": [1, 2, 3], "stream": True, "sampling_params": {"n": 2}}
BATCH: dict[str, Any] = {"input_ids": [[1, 2, 3]], "stream": True}


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
    return outcome.error, recorded_ending(reader, outcome.error)


# What the modes come to.


@pytest.mark.parametrize("mode", [None, "incremental", "cumulative"])
@pytest.mark.parametrize("make", [incremental, cumulative])
def test_stream_joins_to_its_last_state_whatever_mode_the_worker_declares(
    make: Any, mode: str | None
) -> None:
    """The mode is detected from the events, so a worker restarted in another mode is read correctly."""
    assert joined(events(make(*STATES)), mode=mode) == STATES[-1]


@pytest.mark.parametrize("make", [incremental, cumulative])
def test_stream_of_one_event_is_that_event(make: Any) -> None:
    assert joined(events(make(STATES[-1]))) == STATES[-1]


def test_stream_whose_ids_repeat_is_not_taken_for_a_cumulative_one() -> None:
    """The second event's ids begin with the first one's; their total shows the mode."""
    states = (
        complete([5], "a"),
        complete([5, 5, 6], "aab"),
        complete([5, 5, 6, 5], "aaba", {"type": "length"}),
    )
    assert joined(events(incremental(*states))) == states[-1]
    assert joined(events(cumulative(*states))) == states[-1]


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


def test_stream_without_text_joins_without_one() -> None:
    states = [{key: value for key, value in state.items() if key != "text"} for state in STATES]
    parts = [part(b | {"text": ""}, a | {"text": ""}) for a, b in zip(states, states[1:], strict=False)]
    for each in parts:
        del each["text"]
    assert joined(events([states[0], *parts])) == states[-1]


@pytest.mark.parametrize("mode", ["incremental", None])
def test_events_that_the_engine_merged_join_to_the_same(mode: str | None) -> None:
    merged = incremental(STATES[0], STATES[2], STATES[3])
    assert joined(events(merged), mode=mode) == STATES[-1]


# Members.


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


def test_total_that_falls_keeps_its_largest_value() -> None:
    documents = incremental(*STATES)
    for document, total in zip(documents, (1, 4, 3, 2), strict=True):
        document["meta_info"] = document["meta_info"] | {"reasoning_tokens": total}
    assert joined(events(documents))["meta_info"]["reasoning_tokens"] == 4


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


def test_null_in_place_of_a_part_adds_nothing() -> None:
    documents = incremental(*STATES)
    documents[1] = documents[1] | {"text": None}
    assert joined(events(documents)) == STATES[-1]


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


# Several samples.


@pytest.mark.parametrize("make", [incremental, cumulative])
def test_samples_are_listed_in_their_order_whatever_the_order_of_events(make: Any) -> None:
    one = [document | {"index": 1} for document in make(*STATES)]
    other = [document | {"index": 0} for document in make(STATES[0], STATES[3])]
    mixed = [one[0], one[1], other[0], one[2], other[1], one[3]]
    assert joined(events(mixed), TWO) == [STATES[3], STATES[3]]


def test_batch_of_one_is_a_list() -> None:
    assert joined(events([STATES[-1] | {"index": 0}]), BATCH) == [STATES[-1]]


def test_sample_that_never_ends_is_incomplete() -> None:
    documents = [STATES[-1] | {"index": 0}, STATES[0] | {"index": 1}]
    error, ending = failure(events(documents), TWO)
    assert isinstance(error, UpstreamIncomplete)
    assert ending is Ending.INCOMPLETE


# The echo of an abort.


def test_echo_in_a_cumulative_stream_is_the_reply() -> None:
    state = STATES[2]
    assert joined(events([*STATES[:3], echo(state)])) == echo(state)


@pytest.mark.parametrize("seen", [0, 1, 2, 3])
def test_echo_in_an_incremental_stream_repeats_nothing(seen: int) -> None:
    """Also if it was merged with the events it waited behind, ``seen`` of which came before it."""
    state = STATES[2]
    parts = incremental(*STATES[:3])
    last = echo_part(state)
    for document in reversed(parts[seen:]):
        last = merged(document, last)
    assert joined(events([*parts[:seen], last])) == echo(state)


def merged(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Merge two events as the frontend does."""
    metas = [earlier["meta_info"], later["meta_info"]]
    lists = {
        name: [item for meta in metas for item in meta.get(name, [])]
        for name in streams.PER_TOKEN
        if any(name in meta for meta in metas)
    }
    return later | {
        "text": earlier["text"] + later["text"],
        "output_ids": earlier["output_ids"] + later["output_ids"],
        "meta_info": later["meta_info"] | lists,
    }


def test_abort_of_a_running_request_is_a_part_like_any_other() -> None:
    abort = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    last = complete([7, 8, 7, 9, 4], " a\u00e9", abort)
    states = (*STATES[:2], last)
    assert joined(events(incremental(*states))) == last


# Failures inside a stream.


def abort(status: int, message: str, index: int = 0) -> dict[str, Any]:
    finish = {"type": "abort", "status_code": status, "message": message}
    return {"text": "", "output_ids": [], "meta_info": {"id": "a", "finish_reason": finish}, "index": index}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "no /srv/x/y"}}),
        (500, {"object": "error", "message": "no <path>", "type": "500", "param": None, "code": 500}),
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
        ({"message": "m", "type": "t", "code": 400, "retryable": False}, {"message": "m"}, 400),
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


def test_first_sample_that_fails_gives_the_reply() -> None:
    documents = [abort(503, "second", index=1), abort(500, "first"), STATES[-1] | {"index": 0}]
    reader = joining(TWO)
    assert json.loads(run(reader, [events(documents)]).given)["message"] == "second"
    assert reader.facts.error_status == 503


@pytest.mark.parametrize(
    ("stream", "kind", "ending"),
    [
        (b"", UpstreamIncomplete, Ending.INCOMPLETE),
        (DONE, UpstreamIncomplete, Ending.INCOMPLETE),
        (events([STATES[0]]), UpstreamIncomplete, Ending.INCOMPLETE),
        (b"data: {\n\n", UpstreamMalformed, Ending.MALFORMED),
        (b"data: []\n\n", UpstreamMalformed, Ending.MALFORMED),
        (b'data: {"text":"\xff"}\n\n', UpstreamMalformed, Ending.MALFORMED),
        (b'data: {"text":"a","routing_data":5}\n\n', UpstreamMalformed, Ending.MALFORMED),
        (events([STATES[0], STATES[3]])[:-40], UpstreamIncomplete, Ending.INCOMPLETE),
    ],
)
def test_stream_that_is_none_fails(stream: bytes, kind: type[GatewayError], ending: Ending) -> None:
    error, how = failure(stream)
    assert isinstance(error, kind)
    assert how is ending


def test_tokens_that_were_lost_are_noticed() -> None:
    """The total at the end of an incremental stream must be the number of ids."""
    documents = incremental(*STATES)
    del documents[2]
    error, ending = failure(events(documents))
    assert isinstance(error, UpstreamMalformed)
    assert ending is Ending.MALFORMED


@pytest.mark.parametrize("rest", [b"data: {", b"data: {\n\n", b"rubbish\n\n", events([STATES[0]]), b"\xff"])
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


# What is no stream.


def test_reply_that_is_no_stream_is_relayed() -> None:
    body = compact(STATES[-1])
    reader = joining(headers=JSON)
    assert run(reader, [body]).given == body
    assert reader.facts.ending is Ending.STOP


def test_error_status_is_relayed() -> None:
    reader = joining(status=503, headers=JSON)
    assert run(reader, [b'{"error":"x"}']).given == b'{"error":"x"}'
    assert reader.facts.ending is Ending.ERROR_STATUS


def test_join_reader_gives_nothing_before_its_end() -> None:
    reader = joining()
    assert (reader.streaming, reader.identity) == (False, False)
    assert reader.feed(events(incremental(*STATES))) == b""
    assert reader.fail(UpstreamIncomplete("x")) == b""
