"""Every request that reaches a generate route is counted once and logged once, whatever its outcome."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.sim import Half, Reply, SimConfig, SimServer
from gateway.stores.record import WorkerRecord
from tests.support.gateway import RawClient, eventually, rig
from tests.support.generate import KINDS, body_of

BODIES = {
    kind: (KINDS[kind], {**body_of(kind, 4), member: "r"})
    for kind, member in (("sglang", "rid"), ("vllm", "request_id"))
}


async def samples(client: httpx.AsyncClient) -> Mapping[tuple[str, ...], float]:
    """Return (name, label values) -> value of each sample."""
    text = (await client.get("/metrics")).text
    return {
        (sample.name.removeprefix("dynamo_frontend_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def lines(captured: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.splitlines()]


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_success_is_counted_and_logged_with_its_tokens(
    kind: str, stream: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    path, body = BODIES[kind]
    request_type = "stream" if stream else "unary"
    async with SimServer(kind, SimConfig(model="tiny", token_delay=0.01)) as sim:
        async with rig(sim.url, access_log=True) as gateway:
            reply = await gateway.client.post(path, json={**body, "stream": stream})
            assert reply.status_code == 200
            counted = await samples(gateway.client)
    assert counted["requests_started_total", "tiny", "generate", request_type] == 1
    assert counted["requests_total", "tiny", "generate", request_type, "success", ""] == 1
    assert counted["input_sequence_tokens_sum", "tiny"] == 3
    assert counted["output_sequence_tokens_sum", "tiny"] == 4
    assert counted["inter_token_latency_seconds_count", "tiny"] == (3 if stream else 0)
    assert counted["time_to_first_token_seconds_count", "tiny"] == stream
    assert counted["worker_requests_total", sim.url, kind, "completed"] == 1
    assert counted["replies_total", kind, "length"] == 1
    assert counted["worker_inflight_requests", sim.url] == 0
    (line,) = lines(capfd.readouterr().out)
    assert (line["format"], line["endpoint"], line["request_id"]) == (kind, path, "r")
    assert (line["request_type"], line["model"], line["worker"]) == (request_type, "tiny", sim.url)
    assert (line["status"], line["outcome"], line["isl"], line["osl"]) == (200, "completed", 3, 4)
    assert (line["finish_reasons"], line["ending"]) == ({"length": 1}, "length")
    assert line["reply_bytes"] == len(reply.content)
    assert (line["ttft_ms"] is None, line["itl_ms"] is None) == (not stream, not stream)


async def test_request_is_counted_for_the_model_that_only_the_record_names(
    capfd: pytest.CaptureFixture[str],
) -> None:
    path, body = BODIES["sglang"]
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, access_log=True) as gateway:
        (worker,) = gateway.app.fleet.workers
        worker.record = WorkerRecord(sim.url, model="theirs")
        worker.infos = {name: replace(info, models=()) for name, info in worker.infos.items()}
        assert (await gateway.client.post(path, json=body)).status_code == 200
        counted = await samples(gateway.client)
    assert counted["requests_total", "theirs", "generate", "unary", "success", ""] == 1
    (line,) = lines(capfd.readouterr().out)
    assert line["model"] == "theirs"


@pytest.mark.parametrize("kind", BODIES)
async def test_each_failure_is_counted_and_logged_once(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    path, body = BODIES[kind]
    async with SimServer(kind) as sim:
        async with rig(sim.url, access_log=True, body_limit_mb=1) as gateway:
            broken = await gateway.client.post(path, content=b"{")
            large = await gateway.client.post(path, content=b" " * (1024 * 1024 + 1))
            sim.behave(Reply(status=429, body=b'{"error":"busy"}'))
            busy = await gateway.client.post(path, json=body)
            sim.behave(Half(body=b"{"))
            cut = await gateway.client.post(path, json=body)
            counted = await samples(gateway.client)
    statuses = [reply.status_code for reply in (broken, large, busy, cut)]
    assert statuses == [400, 413, 429, 502]
    assert counted["requests_total", "unknown_model", "generate", "unary", "error", "validation"] == 2
    assert counted["requests_total", "sim", "generate", "unary", "error", "overload"] == 1
    assert counted["requests_total", "sim", "generate", "unary", "error", "internal"] == 1
    logged = lines(capfd.readouterr().out)
    assert [line["status"] for line in logged] == statuses
    assert [line["outcome"] for line in logged] == ["failed", "failed", "completed", "failed"]
    assert Counter(line["error"] for line in logged)[None] == 1


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
        ("vllm", _ended("vllm", "stop"), "stop", ""),
        ("sglang", _ended("sglang", "abort"), "client_abort", ""),
        ("vllm", _ended("vllm", "abort"), "client_abort", ""),
        ("sglang", _ended("sglang", "abort", code=400), "engine_abort", "validation"),
        ("sglang", _ended("sglang", "abort", code=503), "engine_abort", "unavailable"),
        ("vllm", _ended("vllm", "error"), "engine_abort", "internal"),
        ("sglang", _error(400), "error_event", "validation"),
        ("vllm", _error(400), "error_event", "validation"),
        ("vllm", _error(503), "error_event", "unavailable"),
        ("sglang", DONE, "incomplete", "internal"),
        ("sglang", b"data: {nonsense\n\n", "malformed", "internal"),
    ],
)
async def test_ending_of_a_stream_is_counted_and_logged(
    kind: str, sent: bytes, ending: str, error_type: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path, body = BODIES[kind]
    async with SimServer(kind) as sim, rig(sim.url, access_log=True) as gateway:
        sim.behave(Reply(body=sent, content_type=EVENTS))
        reply = await gateway.client.post(path, json={**body, "stream": True})
        assert reply.status_code == 200
        counted = await samples(gateway.client)
    status = "error" if error_type else "success"
    assert counted["replies_total", kind, ending] == 1
    assert counted["requests_total", "sim", "generate", "stream", status, error_type] == 1
    (line,) = lines(capfd.readouterr().out)
    assert (line["ending"], line["error_type"]) == (ending, error_type)


@pytest.mark.parametrize(
    ("status", "error_type"), [(400, "validation"), (429, "overload"), (500, "internal")]
)
@pytest.mark.parametrize("kind", BODIES)
async def test_error_status_of_a_worker_is_an_ending(kind: str, status: int, error_type: str) -> None:
    path, body = BODIES[kind]
    async with SimServer(kind) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(status=status, body=b'{"error":"no"}'))
        await gateway.client.post(path, json=body)
        counted = await samples(gateway.client)
    assert counted["replies_total", kind, "error_status"] == 1
    assert counted["requests_total", "sim", "generate", "unary", "error", error_type] == 1


@pytest.mark.parametrize("kind", BODIES)
async def test_routing_data_reaches_the_log_and_not_the_client(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path, body = BODIES[kind]
    data = {"worker_id": 12, "timing": {"queue_ms": 0.5}, "token_ids": [1, 2, 3]}
    event = _ended(kind, "stop").replace(b"{", b'{"routing_data": %b, ' % json.dumps(data).encode(), 1)
    async with SimServer(kind) as sim, rig(sim.url, access_log=True) as gateway:
        sim.behave(Reply(body=event, content_type=EVENTS))
        reply = await gateway.client.post(path, json={**body, "stream": True})
        assert (await samples(gateway.client))["routed_replies_total", kind] == 1
    assert reply.content.endswith(DONE) and b"routing_data" not in reply.content
    (line,) = lines(capfd.readouterr().out)
    assert line["routing"] == {"worker_id": 12, "timing": {"queue_ms": 0.5}}


async def test_request_without_a_worker_is_counted_and_logged(capfd: pytest.CaptureFixture[str]) -> None:
    path, body = BODIES["sglang"]
    async with rig(access_log=True) as gateway:
        reply = await gateway.client.post(path, json=body)
        counted = await samples(gateway.client)
    assert reply.status_code == 503
    assert counted["requests_total", "unknown_model", "generate", "unary", "error", "unavailable"] == 1
    assert counted["failures_total", "Unavailable", "backend.unavailable"] == 1
    (line,) = lines(capfd.readouterr().out)
    assert (line["error"], line["worker"], line["request_id"]) == ("no_worker", None, "r")


@pytest.mark.parametrize("kind", BODIES)
async def test_disconnect_of_the_client_is_counted_and_logged_as_cancelled(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path, body = BODIES[kind]
    async with SimServer(kind, SimConfig(token_delay=0.05, tokens=1000)) as sim:
        async with rig(sim.url, access_log=True) as gateway:
            client = await RawClient.connect(gateway.port)
            client.request(path, json.dumps({**body, "stream": True}).encode())
            await client.reader.readuntil(b"data: ")
            running = await samples(gateway.client)
            client.leave()

            async def counted_as_disconnected() -> bool:
                return (await samples(gateway.client))["disconnected_clients",] == 1

            await eventually(counted_as_disconnected)
            counted = await samples(gateway.client)
    assert running["active_requests", "sim"] == 1
    assert running["requests_started_total", "sim", "generate", "stream"] == 1
    assert counted["active_requests", "sim"] == 0
    assert counted["requests_started_total", "sim", "generate", "stream"] == 1
    assert counted["requests_total", "sim", "generate", "stream", "error", "cancelled"] == 1
    assert counted["model_cancellation_total", "sim", "generate", "stream"] == 1
    (line,) = lines(capfd.readouterr().out)
    assert (line["status"], line["outcome"], line["error"]) == (499, "cancelled", "cancelled")
    assert line["osl"] >= 1


async def test_model_named_by_a_client_never_becomes_a_label() -> None:
    path, body = BODIES["vllm"]
    async with SimServer("vllm") as sim, rig(sim.url) as gateway:
        await gateway.client.post(path, json={**body, "model": "made-up"})
        text = (await gateway.client.get("/metrics")).text
    assert "made-up" not in text


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("sglang", "/generate", {"input_ids": [[1], [2, 600]]}),
        ("vllm", "/inference/v1/generate", {"token_ids": [1, 600], "sampling_params": {}}),
    ],
)
async def test_id_outside_of_the_vocabulary_is_refused_if_its_size_is_set(
    kind: str, path: str, body: dict[str, Any]
) -> None:
    """It is refused and counted before a worker gets it; without the setting it crashes the engine."""
    config = SimConfig(vocab_size=512, skip_tokenizer=True)
    async with SimServer(kind, config) as sim:
        async with rig(sim.url, vocab_size=512) as gateway:
            reply = await gateway.client.post(path, json=body)
            assert reply.status_code == 400
            assert "vocabulary" in reply.json()["error"]["message"]
            counted = await samples(gateway.client)
            assert counted["requests_refused_total", kind, "token_id_outside_vocabulary"] == 1
        async with rig(sim.url) as gateway:
            assert (await gateway.client.post(path, json=body)).status_code >= 500
