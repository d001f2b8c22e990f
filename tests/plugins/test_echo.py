"""A third-party format is installed like any package and runs beside SGLang and vLLM in one gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.formats.contract import ReplyHead
from gateway.formats.registry import load_formats
from gateway.formats.worker_contract import ProbeReply, ProbeRequest
from gateway.sim import Reply, SimServer
from gateway.testing.worker import Answer, ScriptedWorker
from tests.support.gateway import Rig, generates, rig

LINES = ReplyHead(200, [(b"content-type", b"application/x-ndjson")])
BODY = b'{ "text":"one two",  "stream":true, "x":1e-7 }'


@dataclass
class Beside:
    """One gateway with a worker of each of three formats."""

    gateway: Rig
    echo: ScriptedWorker
    sglang: SimServer
    vllm: SimServer

    def echo_calls(self, path: bytes) -> list[bytes]:
        """The bodies of the calls of ``path`` at the worker of the sample format; probes go to others."""
        return [call.body for call in self.echo.others if call.target == path]


@asynccontextmanager
async def beside(**settings: Any) -> AsyncIterator[Beside]:
    """The workers are given by their URLs only: each is identified by its probes."""
    about = {ProbeRequest("GET", "/about-echo"): ProbeReply(200, b"echo")}
    async with (
        SimServer("sglang") as sglang,
        SimServer("vllm") as vllm,
        ScriptedWorker(b"/echo", about).running() as echo,
        rig(sglang.url, echo.url, vllm.url, **{"endpoint": ("/echo=echo",), **settings}) as gateway,
    ):
        yield Beside(gateway, echo, sglang, vllm)


def line(**members: Any) -> bytes:
    return json.dumps(members).encode() + b"\n"


def test_format_is_found_once_it_is_installed(request: pytest.FixtureRequest) -> None:
    """The entry point is enough. Without its metadata the sample is just a folder."""
    assert "echo" not in load_formats()
    installed = request.getfixturevalue("installed")
    formats = load_formats()
    assert {"echo", "sglang", "vllm"} <= formats.keys()
    assert type(formats["echo"]).__module__ == "gateway_echo"
    assert str(installed) in str(sys.modules["gateway_echo"].__file__)


@pytest.mark.usefixtures("installed")
async def test_each_endpoint_is_served_by_the_workers_of_its_format() -> None:
    """And counted under its own path; bytes and private ids cross the gateway as in any other format."""
    async with beside() as of:
        last = line(words=[], id="t1", prompt_words=2, reason="end")
        of.echo.answers.append(Answer(LINES, (line(words=["one"]), last)))
        http = of.gateway.client
        reply = await http.post("/echo", content=BODY, headers={"x-echo-id": "t1"})
        assert (reply.status_code, reply.content) == (200, line(words=["one"]) + last)
        assert [call.body for call in of.echo.calls] == [BODY]
        sglang = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
        assert (await http.post("/generate", json=sglang)).status_code == 200
        vllm = {"token_ids": [1], "sampling_params": {"max_tokens": 1}}
        assert (await http.post("/inference/v1/generate", json=vllm)).status_code == 200
        assert [len(generates(sim)) for sim in (of.sglang, of.vllm)] == [1, 1]
        metrics = (await http.get("/metrics")).text
        counted = [row for row in metrics.splitlines() if "requests_total{" in row and row.endswith(" 1")]
        for format in ("echo", "sglang", "vllm"):
            assert sum(f'"{format}"' in row for row in counted) == 1, counted
        assert (await http.get("/echo")).status_code == 405


@pytest.mark.usefixtures("installed")
async def test_control_calls_go_to_the_workers_of_the_formats_that_declare_them() -> None:
    """A call for any worker is answered by a worker of its format."""
    async with beside() as of:
        http = of.gateway.client
        of.sglang.behave(Reply(body=b"flushed"), path="/flush_cache")
        of.vllm.behave(Reply(body=b"reset"), path="/reset_prefix_cache")
        assert (await http.post("/volume", content=b"11")).content == b"{}"
        assert (await http.post("/flush_cache")).content == b"flushed"
        assert (await http.post("/reset_prefix_cache")).content == b"reset"
        assert of.echo_calls(b"/volume") == [b"11"]
        assert not of.echo_calls(b"/flush_cache") and not of.echo_calls(b"/reset_prefix_cache")
        assert (await http.get("/about-echo")).content == b"echo"


@pytest.mark.usefixtures("installed")
async def test_generate_path_can_have_the_format_which_then_renders_failures() -> None:
    async with beside(generate_format="echo", endpoint=()) as of:
        refused = await of.gateway.client.post("/generate", content=b"{}")
        assert (refused.status_code, refused.json()) == (400, {"problem": "text must be a string"})
