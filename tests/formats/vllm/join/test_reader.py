"""A stream is joined into the reply that the engine gives without a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given

from gateway.errors import UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending, Headers, Ids, Reader, ReplyHead
from gateway.formats.sse import EventScanner
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.join.reader import JoinReader
from gateway.formats.vllm.join.rules import REPLY, WITH_NULLS
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.model import ModelExchange
from tests.contract.models.vllm import VllmModel
from tests.formats.support import DONE, EVENTS, PRIVATE, View, lines, pieces
from tests.formats.vllm.support import chunk, fuzzed, ids_of, recorded, request

DATE = (b"date", b"Sun, 29 Nov 2026 11:14:38 GMT")
WORKER = View(
    info=WorkerInfo("vllm", "vllm", usable=True, models=("base", "alias", "tuned"), adapters=("tuned",))
)
USAGE = {"prompt_tokens": 3, "total_tokens": 9, "completion_tokens": 6}


def joining(
    body: dict[str, Any] | None = None,
    *,
    ids: Ids = PRIVATE,
    headers: Headers = EVENTS,
    status: int = 200,
    worker: View = WORKER,
) -> Reader:
    """Return a join reader for a request of three ids."""
    asked = request(json.dumps({"token_ids": [1, 2, 3], "sampling_params": {}, **(body or {})}).encode())
    return FORMAT.join(asked, worker, ids, ReplyHead(status, headers))


def joined(events: Iterable[bytes], **how: Any) -> dict[str, Any]:
    """Return the reply that ``events`` join to, decoded."""
    reader = joining(**how)
    for event in events:
        assert reader.feed(event) == b""
    found: dict[str, Any] = json.loads(reader.finish())
    return found


def choice_of(events: Iterable[bytes]) -> dict[str, Any]:
    found: list[dict[str, Any]] = joined(events)["choices"]
    assert len(found) == 1
    return found[0]


def with_choice(tokens: list[int], finish: str | None = None, **more: Any) -> bytes:
    """An event whose sample has all the engine's keys, those not given being null."""
    keys = {"routed_experts": None, "sampling_mask": None, "weight_versions": None, "logprobs": None, **more}
    event = json.loads(chunk(tokens, finish)[6:])
    event["choices"][0] |= keys
    return b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode()


def essence(record: dict[str, Any]) -> str | None:
    """Return what two recordings of one request have in common; None if the body is not JSON."""
    try:
        body = json.loads(record["request_body"])
    except ValueError:
        return None
    if not isinstance(body, dict) or not isinstance(body.get("sampling_params"), dict):
        return None
    for key in ("stream", "stream_options", "request_id"):
        body.pop(key, None)
    # How a stream is cut, and a member that the engine overwrites.
    for key in ("stream_interval", "output_kind"):
        body["sampling_params"].pop(key, None)
    return json.dumps([record["server"], record["method"], record["request_headers"], body], sort_keys=True)


def pairs() -> Iterator[tuple[str, str]]:
    """Names of a recorded stream and a recorded unary exchange of the same request."""
    asked: dict[str, list[str]] = {}
    streams: dict[str, str] = {}
    for name, record in recorded("generate").items():
        if (same := essence(record)) is None or "status" not in record:
            continue
        if str(record["body"]).startswith("data:"):
            streams[name] = same
        elif not json.loads(record["request_body"]).get("stream"):
            asked.setdefault(same, []).append(name)
    yield from ((name, unary) for name, same in streams.items() for unary in asked.get(same, ()))


PAIRS = sorted(pairs())


@pytest.mark.parametrize(("stream", "unary"), PAIRS)
@pytest.mark.parametrize("seed", [None, 1])
def test_recorded_stream_joins_to_the_recorded_reply(stream: str, unary: str, seed: int | None) -> None:
    """Every key, in the engine's order, but for the clock and the ids it made up."""
    one, other = recorded("generate")[stream], recorded("generate")[unary]
    asked = request(one["request_body"].encode(), lines(one["request_headers"]))
    worker = View(info=WorkerInfo("vllm", "vllm", usable=True, models=("tiny",)))
    reader = FORMAT.join(asked, worker, ids_of(asked), ReplyHead(200, lines(one["headers"])))
    for part in pieces(one["body"].encode(), seed):
        assert reader.feed(part) == b""
    out = reader.finish().decode()
    if other["status"] != 200:
        assert (out, reader.facts.error_status) == (other["body"], other["status"])
        return
    found, wanted = json.loads(out), json.loads(other["body"])
    assert out == json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    assert list(found) == list(wanted)
    assert abs(found.pop("created") - wanted.pop("created")) < 60
    assert (found.pop("request_id") == wanted.pop("request_id")) == ("request_id" in one["request_body"])
    assert json.dumps(found) == json.dumps(wanted)


def test_reply_has_every_key_in_the_order_of_the_engine() -> None:
    """Keys that a stream does not carry are null, prompt logprobs included."""
    found = joined([chunk([7], "length"), DONE], body={"sampling_params": {"prompt_logprobs": 2}})
    assert list(found) == list(REPLY)
    nulls = [key for key, value in found.items() if value is None]
    assert nulls == [
        key for key in REPLY if key.startswith(("prompt_", "mm_", "metrics", "kv_", "ec_", "created"))
    ]
    assert found["output_mode"] == "tokens"


@pytest.mark.parametrize(
    ("asked", "worker", "model"),
    [({"model": "tuned"}, WORKER, "tuned"), ({"model": "m"}, View(), "m"), ({}, View(), None)],
)
def test_model_is_the_one_the_engine_would_name(
    asked: dict[str, str], worker: View, model: str | None
) -> None:
    """An adapter by its own name, any other name by the engine's first."""
    assert joined([chunk([7], "stop")], body=asked, worker=worker)["model"] == model


@pytest.mark.parametrize(
    ("headers", "created"),
    [([*EVENTS, DATE], 1795950878), (EVENTS, None), ([*EVENTS, (b"date", b"yesterday")], None)],
)
def test_time_is_that_of_the_reply(headers: Headers, created: int | None) -> None:
    """The engine's own clock, as its reply began, never the gateway's."""
    assert joined([chunk([7], "stop")], headers=headers)["created"] == created


def test_usage_of_the_engine_is_taken_over() -> None:
    """The usage event overrides our counts; details it leaves out are null as in the unary reply."""
    total = USAGE | {"prompt_tokens_details": {"cached_tokens": 2, "own": 1}, "new": [1]}
    event = b"data: %b\n\n" % json.dumps({"usage": total, "choices": []}).encode()
    found = joined([chunk([7], "stop"), event, DONE])["usage"]
    details = {"cached_tokens": 2, "created_cache_tokens": None, "multimodal_tokens": None, "own": 1}
    assert found == total | {"prompt_tokens_details": details, "completion_tokens_details": None}
    assert list(found)[-1] == "new"


def test_usage_of_one_sample_tells_of_the_prompt_only() -> None:
    usage = {"prompt_tokens": 4, "total_tokens": 90, "completion_tokens": 86}
    found = joined([chunk([7], usage=usage), chunk([8], "stop", usage=usage)])["usage"]
    assert (found["prompt_tokens"], found["total_tokens"], found["completion_tokens"]) == (4, 6, 2)


def test_masks_are_joined_whether_they_come_in_pieces_or_at_once() -> None:
    """One for each token: with the tokens, or all with the last event, except the event of an abort."""
    pieces_of = [with_choice([1], sampling_mask=[[1, 2]]), with_choice([2, 3], sampling_mask=[[2], [3]])]
    assert choice_of([*pieces_of, with_choice([], "abort", sampling_mask=None)])["sampling_mask"] == [
        [1, 2],
        [2],
        [3],
    ]
    complete = [with_choice([1]), with_choice([2, 3], "stop", sampling_mask=[[1, 2], [2], [3]])]
    assert choice_of(complete)["sampling_mask"] == [[1, 2], [2], [3]]


def test_prompt_logprobs_that_come_all_the_same_survive_with_terminal_masks() -> None:
    """Today's engine does not stream them; a later one may."""
    prompt = [None, {"5": {"logprob": -1.5, "rank": 1, "decoded_token": "a"}}]
    events = [
        chunk([7], prompt_logprobs=prompt),
        with_choice([8], "stop", sampling_mask=[[7], [8]]),
    ]
    found = joined(events)
    assert (found["prompt_logprobs"], found["choices"][0]["sampling_mask"]) == (prompt, [[7], [8]])


def test_prompt_ids_and_metrics_are_kept() -> None:
    """The ids are in the first event, decoding statistics in the usage event, without their nulls."""
    metrics = {"speculative_decoding": {"num_spec_steps": 3}}
    last = b"data: %b\n\n" % json.dumps({"usage": USAGE, "metrics": metrics, "choices": []}).encode()
    events = [chunk([7], prompt_token_ids=[1, 2, 3], mm_placeholders={}), chunk([8], "stop"), last]
    found = joined(events)
    assert (found["prompt_token_ids"], found["mm_placeholders"]) == ([1, 2, 3], {})
    assert found["metrics"] == dict.fromkeys(WITH_NULLS["metrics"]) | metrics


def test_text_is_put_together_in_its_own_spelling() -> None:
    """Escapes are kept, and the halves of a surrogate pair are joined again."""
    parts = [b'"a\\u00e9\\ud83d"', b'"\\ude00\\""', b'""', b"null", b'"z"']
    events = [with_choice([1], text="@").replace(b'"@"', part) for part in parts]
    reader = joining()
    for event in (*events, chunk([9], "stop")):
        reader.feed(event)
    assert b'"text":"a\\u00e9\\ud83d\\ude00\\"z"' in reader.finish()


def test_unknown_keys_are_kept() -> None:
    """The latest value that is not null, of the reply and of a sample."""
    events = [
        with_choice([1], fresh=1, later=None),
        with_choice([2], fresh={"a": [2**70]}),
        with_choice([3], "stop", fresh=None, later="x"),
    ]
    found = choice_of(events)
    assert (found["fresh"], found["later"], found["token_ids"]) == ({"a": [2**70]}, "x", [1, 2, 3])
    complete = joined([chunk([1], novel=1), chunk([2], "stop", novel=None)])
    assert complete["novel"] == 1
    assert list(complete).index("novel") < list(complete).index("output_mode")


def test_numbers_keep_their_spelling() -> None:
    event = with_choice([1], "stop", logprobs=7).replace(
        b'"logprobs":7', b'"logprobs":{"content":[{"logprob":-1e-7,"x":1.50,"y":18446744073709551617}]}'
    )
    reader = joining()
    reader.feed(with_choice([1], logprobs={"content": []}) + event)
    assert b'{"content":[{"logprob":-1e-7,"x":1.50,"y":18446744073709551617}]}' in reader.finish()


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        (b'{"choices":[{"index":0,"token_ids":[1],"finish_reason":"stop","x":NaN}]}', [1]),
        (b'{"choices":[{"index":0,"token_ids":[ 1 ,\n2 ],"finish_reason":"stop"}]}', [1, 2]),
        (b'{"choices":[{"token_ids":[1],"finish_reason":7}]}', [1]),
        (b'{"choices":[{"token_ids":"odd","finish_reason":"stop"}, 7]}', "odd"),
        (b'{"choices":[{"token_ids":[ ],"finish_reason":"stop","logprobs":[]}]}', []),
    ],
)
def test_unusual_values_are_joined_as_far_as_possible(event: bytes, wanted: Any) -> None:
    """The reader refuses only types that it needs."""
    assert choice_of([b"data: %b\n\n" % event.replace(b"\n", b"\ndata: ")])["token_ids"] == wanted


def test_empty_lists_add_no_comma() -> None:
    """An empty list with spaces in it is still empty."""
    events = [with_choice([1]), with_choice([]).replace(b"[]", b"[ ]"), with_choice([2], "stop")]
    assert choice_of(events)["token_ids"] == [1, 2]


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (
            '{"message": "at /opt/x/y.py", "type": "InternalServerError", "param": null, "code": 500}',
            500,
            '{"error":{"message":"at <path>","type":"InternalServerError","param":null,"code":500}}',
        ),
        ('"scaling"', 500, '{"error":"scaling"}'),
        ('{"message": "\\ud800", "code": 503}', 503, '{"error":{"message":"\\ud800","code":503}}'),
    ],
)
def test_error_event_becomes_the_error_reply(error: str, status: int, body: str) -> None:
    """Spelled as without a stream, with its status in the facts, even after tokens."""
    reader = joining()
    for event in (chunk([1]), b'data: {"error": %b}\n\n' % error.encode(), DONE):
        reader.feed(event)
    assert reader.finish().decode() == body
    assert (reader.facts.error_status, reader.facts.ending) == (status, Ending.ERROR_EVENT)


@pytest.mark.parametrize(
    "events",
    [
        [chunk([1])],
        [chunk([1]), DONE],
        [],
        [chunk([1], "stop", index=0), chunk([1], index=1), DONE],
        [chunk([1]), b"data: {"],
    ],
)
def test_incomplete_stream_is_a_failure(events: list[bytes]) -> None:
    reader = joining()
    for event in events:
        reader.feed(event)
    with pytest.raises(UpstreamIncomplete) as caught:
        reader.finish()
    assert reader.fail(caught.value) == b""


@pytest.mark.parametrize("event", [b"data: {\n\n", b"data: [1]\n\n", b'data: {"a":"\xff"}\n\n'])
def test_broken_event_is_malformed_before_the_end_and_ignored_after_it(event: bytes) -> None:
    reader = joining()
    with pytest.raises(UpstreamMalformed):
        reader.feed(chunk([1]) + event)
    assert choice_of([chunk([1], "stop"), event, DONE])["token_ids"] == [1]


def test_nothing_after_done_is_read() -> None:
    assert choice_of([chunk([1], "stop") + DONE + chunk([2]), b"garbage\n\n"])["token_ids"] == [1]


def test_routing_data_leaves_the_reply() -> None:
    reader = joining()
    reader.feed(chunk([1], "stop", routing_data={"worker_id": 7}))
    assert "routing_data" not in json.loads(reader.finish())
    assert reader.facts.routing_data == {"worker_id": 7}
    with pytest.raises(UpstreamMalformed):
        joining().feed(chunk([1], routing_data=[7]))


@fuzzed
@given(VllmModel().exchanges())
def test_short_way_and_long_way_give_the_same(exchange: ModelExchange) -> None:
    """The fast path of the usual event changes the cost only."""
    out = []
    for kind in (JoinReader, LongWay):
        asked = FORMAT.parse(exchange.body, exchange.headers)
        given = {"model": None, "created": None}
        reader = kind(asked, ids_of(asked), given, EventScanner(), passthrough=False)
        for event in exchange.stream:
            reader.feed(event)
        out.append((reader.finish(), reader.facts))
    assert out[0] == out[1]


class LongWay(JoinReader):
    """A join reader without the fast path."""

    __slots__ = ()

    def _read_usual(self, data: bytes) -> bool:
        return False
