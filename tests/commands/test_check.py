"""``check`` prints what a worker is, and why it cannot be used."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from typer.testing import CliRunner

from gateway.commands.check import HEADINGS, table
from gateway.commands.main import app
from gateway.sim import SimConfig, SimServer
from tests.support.processes import free_port

runner = CliRunner()


async def check(*urls: str, **environment: str) -> Any:
    flags = [flag for url in urls for flag in ("--worker", url)]
    return await asyncio.to_thread(runner.invoke, app, ["check", *flags], env=environment)


async def test_check_shows_what_each_worker_is() -> None:
    config = SimConfig(model="tiny", max_model_len=2048)
    async with SimServer("sglang", config) as first, SimServer("vllm", config) as second:
        result = await check(first.url, second.url)
    assert result.exit_code == 0
    heading, *rows = [line.split() for line in result.output.splitlines()[:3]]
    assert tuple(heading) == HEADINGS
    assert [row[:2] for row in rows] == [[first.url, "sglang"], [second.url, "vllm"]]
    assert all({"tiny", "2048"} <= set(row) for row in rows)
    assert [row[HEADINGS.index("USABLE")] for row in rows] == ["yes", "yes"]
    cards = [line.partition(": ") for line in result.output.splitlines()[3:]]
    assert [name for name, _, _ in cards] == [f"card of {sim.url}" for sim in (first, second)]
    assert [json.loads(card)["context_length"] for _, _, card in cards] == [2048, 2048]


async def test_check_names_a_server_that_is_given_twice() -> None:
    async with SimServer("sglang") as sim:
        result = await check(sim.url, sim.url.replace("127.0.0.1", "localhost"))
    assert result.exit_code == 0
    (line,) = [line for line in result.output.splitlines() if "it is the same server as" in line]
    assert line.split()[-1] != line.split()[0]


async def test_check_exits_1_and_gives_the_reasons_when_no_worker_is_usable() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with SimServer("vllm", SimConfig(enable_scale_out=False)) as off:
        result = await check(off.url, dead)
    assert result.exit_code == 1
    rows = result.output.splitlines()[1:]
    assert "--enable-scale-out" in rows[0]
    assert "nothing listens" in rows[1]


async def test_check_sends_the_key_and_never_shows_it() -> None:
    async with SimServer("vllm", SimConfig(api_key="hunter2")) as sim:
        refused = await check(sim.url)
        result = await check(sim.url, DYN_WORKER_API_KEY="hunter2")
    assert refused.exit_code == 1
    assert result.exit_code == 0
    assert "hunter2" not in result.output


def test_check_without_workers_exits_2() -> None:
    result = runner.invoke(app, ["check"])
    assert result.exit_code == 2
    assert "--worker" in result.stderr


def test_table_keeps_each_worker_on_one_line() -> None:
    shown = table([("A", "B"), ("evil\n\x1b[2Jname", "x")])
    assert shown.splitlines() == ["A              B", "evil??[2Jname  x"]
