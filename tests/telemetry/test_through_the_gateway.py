"""Every request that reaches a generate route is counted once and logged once, whatever becomes of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.sim import Half, Reply, SimConfig, SimServer
from tests.support import RawClient, eventually, rig

BODIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sglang": ("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}, "rid": "r"}),
    "vllm": (
        "/inference/v1/generate",
        {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}, "request_id": "r"},
    ),
}


async def samples(client: httpx.AsyncClient) -> Mapping[tuple[str, ...], float]:
    """(name, label values) of what was counted, without labels that are always the same."""
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
    assert counted["output_sequence_tokens_sum", "tiny"] == 4
    assert counted["inter_token_latency_seconds_count", "tiny"] == (3 if stream else 0)
    assert counted["time_to_first_token_seconds_count", "tiny"] == stream
    assert counted["worker_requests_total", sim.url, kind, "completed"] == 1
    assert counted["worker_inflight_requests", sim.url] == 0
    (line,) = lines(capfd.readouterr().out)
    assert (line["format"], line["endpoint"], line["request_id"]) == (kind, path, "r")
    assert (line["request_type"], line["model"], line["worker"]) == (request_type, "tiny", sim.url)
    assert (line["status"], line["outcome"], line["osl"]) == (200, "completed", 4)
    assert line["finish_reasons"] == {"length": 1}
    assert line["reply_bytes"] == len(reply.content)
    assert (line["ttft_ms"] is None, line["itl_ms"] is None) == (not stream, not stream)


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        ("sglang", False),
        ("sglang", True),
        ("vllm", False),
        ("vllm", True),
    ],
)
async def test_prompt_length_is_counted_and_logged(
    kind: str, stream: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    path, body = BODIES[kind]
    async with SimServer(kind) as sim, rig(sim.url, access_log=True) as gateway:
        await gateway.client.post(path, json={**body, "stream": stream})
        counted = await samples(gateway.client)
    assert counted["input_sequence_tokens_sum", "sim"] == 3
    assert lines(capfd.readouterr().out)[0]["isl"] == 3


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
async def test_client_that_leaves_is_counted_and_logged_as_cancelled(
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

            async def gone() -> bool:
                return (await samples(gateway.client))["disconnected_clients",] == 1

            await eventually(gone)
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


async def test_what_a_client_calls_its_model_never_becomes_a_label() -> None:
    path, body = BODIES["vllm"]
    async with SimServer("vllm") as sim, rig(sim.url) as gateway:
        await gateway.client.post(path, json={**body, "model": "made-up"})
        text = (await gateway.client.get("/metrics")).text
    assert "made-up" not in text
