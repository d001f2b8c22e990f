"""A stream is joined into the reply that the engine gives without a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given

from gateway.errors import UpstreamIncomplete
from gateway.formats.contract import Headers, Reader, ReplyHead
from gateway.formats.sse import EventScanner
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.join.reader import JoinReader
from gateway.formats.vllm.join.rules import REPLY, WITH_NULLS
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.drive import drive
from gateway.testing.model import ModelExchange
from tests.contract.models.vllm import VllmModel
from tests.formats.support import DONE, EVENTS, PRIVATE, View, compact
from tests.formats.vllm.support import chunk

DATE = (b"date", b"Sun, 29 Nov 2026 11:14:38 GMT")
WORKER = View(
    info=WorkerInfo("vllm", "vllm", usable=True, models=("base", "alias", "tuned"), adapters=("tuned",))
)
USAGE = {"prompt_tokens": 3, "total_tokens": 9, "completion_tokens": 6}


def joining(headers: Headers = EVENTS, worker: View = WORKER, **body: Any) -> Reader:
    """Return a join reader for a request of three ids."""
    asked = FORMAT.parse(compact({"token_ids": [1, 2, 3], "sampling_params": {}, **body}), ())
    return FORMAT.join(asked, worker, PRIVATE, ReplyHead(200, headers))


def joined(events: Iterable[bytes], **how: Any) -> dict[str, Any]:
    outcome = drive(joining(**how), events)
    assert outcome.failure is None
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def choice_of(events: Iterable[bytes]) -> dict[str, Any]:
    found: list[dict[str, Any]] = joined(events)["choices"]
    assert len(found) == 1
    return found[0]


def with_choice(tokens: list[int], finish: str | None = None, **more: Any) -> bytes:
    keys = {"routed_experts": None, "sampling_mask": None, "weight_versions": None, "logprobs": None, **more}
    event = json.loads(chunk(tokens, finish)[6:])
    event["choices"][0] |= keys
    return b"data: %b\n\n" % compact(event)


def test_reply_has_every_key_in_the_order_of_the_engine() -> None:
    """Keys that a stream does not carry are null, prompt logprobs included."""
    found = joined([chunk([7], "length"), DONE], sampling_params={"prompt_logprobs": 2})
    assert list(found) == list(REPLY)
    nulls = [key for key, value in found.items() if value is None]
    assert nulls == [
        key for key in REPLY if key.startswith(("prompt_", "mm_", "metrics", "kv_", "ec_", "created"))
    ]
    assert found["output_mode"] == "tokens"
    # The model is the engine's own, or what was asked for where the worker names none.
    assert joined([chunk([7], "stop")], model="m", worker=View())["model"] == "m"


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


@pytest.mark.parametrize("masks", [([[1, 2]], [], [[2], [3]], None), (None, None, [[1, 2], [2], [3]], None)])
def test_masks_are_joined_whether_they_come_in_pieces_or_at_once(masks: tuple[Any, ...]) -> None:
    """One for each token: with the tokens, or all with the last event, except the event of an abort."""
    events = [with_choice([], sampling_mask=mask) for mask in masks[:-1]]
    events[1] = events[1].replace(b"[]", b"[ ]")  # an empty list adds no comma
    found = choice_of([*events, with_choice([1], "abort", sampling_mask=masks[-1])])
    assert (found["sampling_mask"], found["token_ids"]) == ([[1, 2], [2], [3]], [1])


def test_prompt_ids_metrics_and_what_is_not_streamed_yet_are_kept() -> None:
    """The ids are in the first event, decoding statistics in the usage event, without their nulls."""
    prompt = [None, {"5": {"logprob": -1.5, "rank": 1, "decoded_token": "a"}}]
    metrics = {"speculative_decoding": {"num_spec_steps": 3}}
    last = b"data: %b\n\n" % json.dumps({"usage": USAGE, "metrics": metrics, "choices": []}).encode()
    first = chunk([7], prompt_token_ids=[1, 2, 3], mm_placeholders={}, prompt_logprobs=prompt)
    found = joined([first, with_choice([8], "stop", sampling_mask=[[7], [8]]), last])
    assert (found["prompt_token_ids"], found["prompt_logprobs"]) == ([1, 2, 3], prompt)
    assert found["mm_placeholders"] == {}
    assert found["metrics"] == dict.fromkeys(WITH_NULLS["metrics"]) | metrics


def test_text_and_numbers_keep_their_spelling() -> None:
    """Escapes are kept, and the halves of a surrogate pair are joined again."""
    parts = [b'"a\\u00e9\\ud83d"', b'"\\ude00\\""', b'""', b"null", b'"z"']
    entry = b'{"content":[{"logprob":-1e-7,"x":1.50,"y":18446744073709551617}]}'
    reader = joining()
    for part in parts:
        reader.feed(with_choice([1], text="@", logprobs={"content": []}).replace(b'"@"', part))
    reader.feed(with_choice([1], "stop", logprobs=7).replace(b'"logprobs":7', b'"logprobs":' + entry))
    reply = reader.finish()
    error = joined([b'data: {"error": {"message": "\\ud800", "code": 503}}\n\n'])
    assert error == {"error": {"message": "\ud800", "code": 503}}
    assert b'"text":"a\\u00e9\\ud83d\\ude00\\"z"' in reply and entry in reply


def test_sample_that_was_not_asked_for_must_finish_too() -> None:
    events = (chunk([1], "stop", index=0), chunk([1], index=1), DONE)
    assert drive(joining(), events).failure is UpstreamIncomplete


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


@given(VllmModel().exchanges())
def test_short_way_and_long_way_give_the_same(exchange: ModelExchange) -> None:
    """The fast path of the usual event changes the cost only."""
    out = []
    for kind in (JoinReader, LongWay):
        asked = FORMAT.parse(exchange.body, exchange.headers)
        given = {"model": None, "created": None}
        out.append(drive(kind(asked, PRIVATE, given, EventScanner(), passthrough=False), exchange.stream))
    assert out[0] == out[1]


class LongWay(JoinReader):
    __slots__ = ()

    def _read_usual(self, data: bytes) -> bool:
        return False
