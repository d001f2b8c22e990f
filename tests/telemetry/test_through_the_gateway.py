"""Every request that reaches a generate route is counted once and logged once, whatever its outcome."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.fleet.states import WorkerState
from gateway.sim import Half, Reply, SimConfig
from gateway.stores.record import WorkerRecord
from tests.support.fleet import Fleet, fleet
from tests.support.gateway import RawClient, eventually, until
from tests.support.generate import ID, KINDS, body_of
from tests.telemetry.support import Samples, samples_of

Capture = pytest.CaptureFixture[str]
#: Kind of engine -> its path, and a request that names its id.
BODIES = {kind: (KINDS[kind], {**body_of(kind, 4), ID[kind]: "r"}) for kind in KINDS}


async def counts(of: Fleet) -> Samples:
    return samples_of((await of.gateway.client.get("/metrics")).text)


def lines(captured: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.splitlines()]


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_success_is_counted_and_logged_with_its_tokens(kind: str, stream: bool, capfd: Capture) -> None:
    path, body = BODIES[kind]
    request_type = "stream" if stream else "unary"
    async with fleet(kind, config=SimConfig(model="tiny", token_delay=0.01), access_log=True) as of:
        reply = await of.post(path, json={**body, "stream": stream})
        assert reply.status_code == 200
        counted, url = await counts(of), of.sims[0].url
    assert counted["requests_started_total", "tiny", "generate", request_type] == 1
    assert counted["requests_total", "tiny", "generate", request_type, "success", ""] == 1
    assert counted["input_sequence_tokens_sum", "tiny"] == 3
    assert counted["output_sequence_tokens_sum", "tiny"] == 4
    assert counted["inter_token_latency_seconds_count", "tiny"] == (3 if stream else 0)
    assert counted["time_to_first_token_seconds_count", "tiny"] == stream
    assert counted["worker_requests_total", url, kind, "completed"] == 1
    assert counted["replies_total", kind, "length"] == 1
    assert counted["worker_inflight_requests", url] == 0
    (line,) = lines(capfd.readouterr().out)
    assert (line["format"], line["endpoint"], line["request_id"]) == (kind, path, "r")
    assert (line["request_type"], line["model"], line["worker"]) == (request_type, "tiny", url)
    assert (line["status"], line["outcome"], line["isl"], line["osl"]) == (200, "completed", 3, 4)
    assert (line["finish_reasons"], line["ending"]) == ({"length": 1}, "length")
    assert line["reply_bytes"] == len(reply.content)
    assert (line["ttft_ms"] is None, line["itl_ms"] is None) == (not stream, not stream)


async def test_request_is_counted_for_the_model_that_only_the_record_names(capfd: Capture) -> None:
    path, body = BODIES["sglang"]
    async with fleet("sglang", access_log=True) as of:
        worker = of.worker()
        worker.record = WorkerRecord(worker.url, model="theirs")
        worker.infos = {name: replace(info, models=()) for name, info in worker.infos.items()}
        assert (await of.post(path, json=body)).status_code == 200
        counted = await counts(of)
    assert counted["requests_total", "theirs", "generate", "unary", "success", ""] == 1
    (line,) = lines(capfd.readouterr().out)
    assert line["model"] == "theirs"


@pytest.mark.parametrize("kind", BODIES)
async def test_each_failure_is_counted_and_logged_once(kind: str, capfd: Capture) -> None:
    """A model that a client made up never becomes a label."""
    path, body = BODIES[kind]
    made_up = {**body, "model": "made-up"}
    async with fleet(kind, access_log=True, body_limit_mb=1) as of:
        replies = [await of.post(path, content=content) for content in (b"{", b" " * (1024 * 1024 + 1))]
        of.sims[0].behave(Half(body=b"{"), *(Reply(status=status, body=b"{}") for status in (429, 500, 400)))
        replies += [await of.post(path, json=asked) for asked in (body, body, body, made_up)]
        await of.sims[0].kill()
        await until(lambda: of.worker().state is WorkerState.DEAD)
        replies.append(await of.post(path, json=body))
        counted = await counts(of)
    statuses = [reply.status_code for reply in replies]
    assert statuses == [400, 413, 502, 429, 500, 400, 503]
    requests = {key[1:]: number for key, number in counted.items() if key[0] == "requests_total"}
    assert requests == {
        ("unknown_model", "generate", "unary", "error", "validation"): 3,
        ("unknown_model", "generate", "unary", "error", "unavailable"): 1,
        ("sim", "generate", "unary", "error", "overload"): 1,
        ("sim", "generate", "unary", "error", "internal"): 2,
    }
    assert counted["replies_total", kind, "error_status"] == 3
    assert counted["failures_total", "Unavailable", "backend.unavailable"] == 1
    logged = lines(capfd.readouterr().out)
    assert [line["status"] for line in logged] == statuses
    assert [line["outcome"] for line in logged] == ["failed"] * 3 + ["completed"] * 3 + ["failed"]
    assert Counter(line["error"] for line in logged)[None] == 3
    assert (logged[-1]["error"], logged[-1]["worker"], logged[-1]["request_id"]) == ("no_worker", None, "r")


EVENTS = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def _ended(kind: str, reason: str, *, code: int | None = None) -> bytes:
    """The last event of a stream, which finished for ``reason``."""
    if kind == "sglang":
        finish = {"type": reason, "message": "x", "status_code": code, "err_type": None}
        meta = {"id": "r", "finish_reason": finish, "completion_tokens": 1, "prompt_tokens": 3}
        event: Mapping[str, Any] = {"text": "", "output_ids": [7], "meta_info": meta}
    else:
        choice = {"index": 0, "token_ids": [7], "logprobs": None, "finish_reason": reason}
        event = {"request_id": "generate-tokens-r", "choices": [choice], "usage": None}
    return b"data: %b\n\n%b" % (json.dumps(event).encode(), DONE)


def _error(code: int) -> bytes:
    return b'data: {"error":{"message":"no","type":"x","param":null,"code":%d}}\n\n%b' % (code, DONE)


@pytest.mark.parametrize(
    ("kind", "sent", "ending", "error_type"),
    [
        ("sglang", _ended("sglang", "stop"), "stop", ""),
        ("vllm", _ended("vllm", "abort"), "client_abort", ""),
        ("sglang", _ended("sglang", "abort", code=503), "engine_abort", "unavailable"),
        ("vllm", _ended("vllm", "error"), "engine_abort", "internal"),
        ("vllm", _error(400), "error_event", "validation"),
        ("sglang", DONE, "incomplete", "internal"),
        ("sglang", b"data: {nonsense\n\n", "malformed", "internal"),
    ],
)
async def test_ending_of_a_stream_is_counted_and_logged(
    kind: str, sent: bytes, ending: str, error_type: str, capfd: Capture
) -> None:
    path, body = BODIES[kind]
    async with fleet(kind, access_log=True) as of:
        of.sims[0].behave(Reply(body=sent, content_type=EVENTS))
        assert (await of.post(path, json={**body, "stream": True})).status_code == 200
        counted = await counts(of)
    status = "error" if error_type else "success"
    assert counted["replies_total", kind, ending] == 1
    assert counted["requests_total", "sim", "generate", "stream", status, error_type] == 1
    (line,) = lines(capfd.readouterr().out)
    assert (line["ending"], line["error_type"]) == (ending, error_type)


#: Two tokens of a stream that goes on, and more cached tokens than the prompt has.
_RUNNING: dict[str, Any] = {
    "sglang": {"meta_info": {"id": "r", "completion_tokens": 2, "prompt_tokens": 3, "cached_tokens": 9}},
    "vllm": {
        "request_id": "generate-tokens-r",
        "choices": [{"index": 0, "token_ids": [7, 8]}],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}},
    },
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("broken", [b"data: {nonsense\n\n", b"data: 7\n\n"])
async def test_events_of_one_read_with_a_malformed_one_are_counted(
    kind: str, broken: bytes, capfd: Capture
) -> None:
    path, body = BODIES[kind]
    event = b"data: %b\n\n" % json.dumps(_RUNNING[kind]).encode()
    async with fleet(kind, access_log=True) as of:
        of.sims[0].behave(Reply(body=event + broken, content_type=EVENTS))
        reply = await of.post(path, json={**body, "stream": True})
        counted = await counts(of)
    assert reply.content.startswith(event + b'data: {"error"')
    (line,) = lines(capfd.readouterr().out)
    assert (line["osl"], line["reply_bytes"], line["ending"]) == (2, len(event), "malformed")
    assert counted["time_to_first_token_seconds_count", "sim"] == 1


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_cached_tokens_are_no_more_than_the_prompt_has(kind: str, stream: bool, capfd: Capture) -> None:
    path, body = BODIES[kind]
    document = json.dumps(_RUNNING[kind]).encode()
    sent = (
        (b"data: %b\n\n%b" % (document, _ended(kind, "stop")), EVENTS)
        if stream
        else (document, "application/json")
    )
    async with fleet(kind, access_log=True) as of:
        of.sims[0].behave(Reply(body=sent[0], content_type=sent[1]))
        assert (await of.post(path, json={**body, "stream": stream})).content == sent[0]
        counted = await counts(of)
    (line,) = lines(capfd.readouterr().out)
    assert (line["cached"], line["isl"]) == (3, 3)
    assert counted["cached_tokens_sum", "sim"] == 3


@pytest.mark.parametrize("kind", BODIES)
async def test_routing_data_reaches_the_log_and_not_the_client(kind: str, capfd: Capture) -> None:
    path, body = BODIES[kind]
    logged = {"worker_id": 12, "timing": {"queue_ms": 0.5}}
    data = json.dumps({**logged, "token_ids": [1, 2, 3]}).encode()
    event = _ended(kind, "stop").replace(b"{", b'{"routing_data": %b, ' % data, 1)
    async with fleet(kind, access_log=True) as of:
        of.sims[0].behave(Reply(body=event, content_type=EVENTS))
        reply = await of.post(path, json={**body, "stream": True})
        assert (await counts(of))["routed_replies_total", kind] == 1
    assert reply.content.endswith(DONE) and b"routing_data" not in reply.content
    (line,) = lines(capfd.readouterr().out)
    assert line["routing"] == logged


@pytest.mark.parametrize("kind", BODIES)
async def test_disconnect_of_the_client_is_counted_and_logged_as_cancelled(kind: str, capfd: Capture) -> None:
    path, body = BODIES[kind]
    async with fleet(kind, config=SimConfig(token_delay=0.05, tokens=1000), access_log=True) as of:
        client = await RawClient.connect(of.gateway.port)
        client.request(path, json.dumps({**body, "stream": True}).encode())
        await client.reader.readuntil(b"data: ")
        running = await counts(of)
        client.leave()

        async def counted_as_disconnected() -> bool:
            return (await counts(of))["disconnected_clients",] == 1

        await eventually(counted_as_disconnected)
        counted = await counts(of)
    assert running["active_requests", "sim"] == 1
    assert running["requests_started_total", "sim", "generate", "stream"] == 1
    assert counted["active_requests", "sim"] == 0
    assert counted["requests_started_total", "sim", "generate", "stream"] == 1
    assert counted["requests_total", "sim", "generate", "stream", "error", "cancelled"] == 1
    assert counted["model_cancellation_total", "sim", "generate", "stream"] == 1
    (line,) = lines(capfd.readouterr().out)
    assert (line["status"], line["outcome"], line["error"]) == (499, "cancelled", "cancelled")
    assert line["osl"] >= 1
