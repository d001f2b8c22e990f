"""A third-party format is installed like any package and runs beside SGLang and vLLM in one gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.contract import ReplyHead
from gateway.formats.registry import load_formats
from gateway.formats.worker_contract import ProbeReply, ProbeRequest
from gateway.sim import Reply, SimServer
from gateway.testing.worker import Answer, End, ScriptedWorker
from tests.support.fleet import called
from tests.support.gateway import Rig, generates, rig, until

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


def test_installed_format_is_found_beside_our_own(installed: Path) -> None:
    """The entry point is enough."""
    formats = load_formats()
    assert {"echo", "sglang", "vllm"} <= formats.keys()
    assert type(formats["echo"]).__module__ == "gateway_echo"
    assert str(installed) in str(sys.modules["gateway_echo"].__file__)


def test_format_that_is_not_installed_is_not_found() -> None:
    """Without its metadata the sample is just a folder."""
    assert "echo" not in load_formats()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"text":1}'])
def test_sample_keeps_the_contract_of_parse(body: bytes) -> None:
    """InvalidRequest, and nothing else."""
    with pytest.raises(InvalidRequest):
        load_formats()["echo"].parse(body, ())


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
async def test_request_is_aborted_by_its_formats_own_call_at_the_worker_that_runs_it() -> None:
    async with beside() as of:
        of.echo.answers.append(Answer(LINES, (line(words=["one"]),), End.SILENCE))
        http = of.gateway.client
        async with http.stream("POST", "/echo", content=BODY, headers={"x-echo-id": "t1"}) as reply:
            await anext(reply.aiter_raw())
            summary = await http.post("/hush", json={"id": "t1"})
            assert (summary.status_code, summary.json()["aborted"]) == (200, 1)
            assert set(of.echo_calls(b"/hush")) == {b'{"id": "t1"}'}
        assert not called(of.sglang, "/abort_request") and not called(of.vllm, "/inference/v1/abort_requests")
        assert (await http.post("/hush", json={"rid": "t1"})).json() == {"problem": "id must be a string"}


@pytest.mark.usefixtures("installed")
async def test_client_that_disconnects_has_its_request_aborted_in_the_dialect() -> None:
    async with beside() as of:
        of.echo.answers.append(Answer(LINES, (line(words=["one"]),), End.SILENCE))
        async with of.gateway.client.stream(
            "POST", "/echo", content=BODY, headers={"x-echo-id": "t-1"}
        ) as reply:
            await anext(reply.aiter_raw())
        await until(lambda: bool(of.echo_calls(b"/hush")))
        dispatched = dict(of.echo.calls[0].headers)[b"x-echo-id"].decode()
        assert json.loads(of.echo_calls(b"/hush")[0]) == {"id": dispatched} and len(dispatched) == 32


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
async def test_failures_are_rendered_in_the_dialect() -> None:
    """A refusal before commit and a failure after it, at ``/generate``."""
    async with beside(generate_format="echo", endpoint=()) as of:
        http = of.gateway.client
        refused = await http.post("/generate", content=b"{}")
        assert (refused.status_code, refused.json()) == (400, {"problem": "text must be a string"})
        of.echo.answers.append(Answer(LINES, (line(words=["one"]),), End.COMPLETE))
        reply = await http.post("/generate", content=BODY)
        first, last = (json.loads(each) for each in reply.text.splitlines())
        assert first == {"words": ["one"]}
        assert last["problem"] and last["status"] == 502
