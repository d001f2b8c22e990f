"""A simulated engine in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from tests.sim.calls import JSON, PATHS, body
from tests.sim.client import Client, ask

CODE = "import sys; from gateway.sim import SimConfig, main; sys.exit(main({kind!r}, SimConfig({options})))"


async def started(kind: str, options: str = "") -> tuple[Process, int]:
    """Start the process and return it with its port, once it listens."""
    code = CODE.format(kind=kind, options=options)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.startswith("listening on http://127.0.0.1:")
    return process, int(line.rsplit(":", 1)[1])


async def ended(process: Process) -> int:
    async with asyncio.timeout(20):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_sigterm_ends_it_as_its_engine_ends(kind: str) -> None:
    """SGLang finishes what runs, vLLM aborts it; both leave with 0."""
    process, port = await started(kind, "token_delay=0.005, drain_poll=0.05")
    async with await Client.connect(port) as client:
        client.send(PATHS[kind], body(kind, 60), headers=JSON)
        while (await ask(port, "/_sim/stats", method="GET")).json["running"] != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        reply = (await client.answer()).json
    if kind == "sglang":
        assert reply["meta_info"]["finish_reason"]["type"] == "length"
    else:
        assert reply["choices"][0]["finish_reason"] == "abort"
    assert await ended(process) == 0


async def test_sigint_ends_it_at_once() -> None:
    process, port = await started("sglang", "token_delay=1")
    async with await Client.connect(port) as client:
        client.send("/generate", body("sglang"), headers=JSON)
        process.send_signal(signal.SIGINT)
        assert await ended(process) == 0


async def test_crashing_input_ends_it_with_1() -> None:
    process, port = await started("sglang")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await ask(port, "/generate", b'{"input_ids":[-1]}', headers=JSON)
    assert await ended(process) == 1
