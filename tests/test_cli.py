"""The commands: flags, exit codes, and one line for what a user can put right."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from importlib.metadata import version
from typing import IO, Any

import pytest
from typer.testing import CliRunner

from gateway import server
from gateway.check import HEADINGS, table
from gateway.cli import app
from gateway.settings import Settings, flag_of, variable_of
from gateway.sim import SimConfig, SimServer

runner = CliRunner()

#: Room for a machine that is busy with other tests.
PATIENCE = 50


@cache
def help_of(*command: str) -> str:
    """The help of a command, without the spaces that wrap it."""
    return "".join(runner.invoke(app, [*command, "--help"]).output.split())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments], capture_output=True, text=True, timeout=PATIENCE
    )


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on, and is gone after the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_with(stream: IO[str] | None, text: str) -> str:
    """The first line of ``stream`` that holds ``text``."""
    assert stream is not None
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What ``serve`` would have run with."""
    settings: list[Settings] = []

    def note(given: Settings) -> int:
        settings.append(given)
        return 0

    monkeypatch.setattr(server, "run", note)
    return settings


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_a_flag_of_serve_with_its_variable_in_the_help(name: str) -> None:
    assert flag_of(name) in help_of("serve")
    assert f"[{variable_of(Settings.model_fields[name])}" in help_of("serve")


def test_serve_hands_flags_to_the_settings_and_they_win(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_HTTP_PORT", "9001")
    monkeypatch.setenv("DYN_ROUTER_MODE", "random")
    flags = ["--port", "9002", "--no-access-log", "--worker", "http://a:1", "--worker", "http://b:1"]
    result = runner.invoke(app, ["serve", *flags])
    assert result.exit_code == 0
    (settings,) = served
    assert (settings.port, settings.router_mode, settings.access_log) == (9002, "random", False)
    assert settings.worker == ("http://a:1", "http://b:1")


def test_serve_without_flags_has_the_defaults(served: list[Settings]) -> None:
    assert runner.invoke(app, ["serve"]).exit_code == 0
    assert served == [Settings()]


def test_bad_flag_exits_2_with_one_line_that_names_it(served: list[Settings]) -> None:
    result = runner.invoke(app, ["serve", "--port", "x"])
    assert result.exit_code == 2
    assert result.stderr.startswith("tito-gateway: --port: ")
    assert result.stderr.count("\n") == 1
    assert served == []


def test_bad_variable_exits_2_with_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_METRICS_TTFT_MIN", "-1")
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 2
    assert result.stderr.startswith("tito-gateway: DYN_METRICS_TTFT_MIN: ")
    assert result.stderr.count("\n") == 1


def test_unknown_flag_exits_2() -> None:
    assert runner.invoke(app, ["serve", "--prot", "1"]).exit_code == 2


def test_unknown_variables_get_one_warning(served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_HTTP_PROT", "1")
    monkeypatch.setenv("DYN_WROKER", "1")
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 0
    assert result.stderr.count("ignored environment variables") == 1
    assert "DYN_HTTP_PROT, DYN_WROKER" in result.stderr
    assert len(served) == 1


def test_unknown_format_exits_2_and_lists_the_installed_ones() -> None:
    result = run("serve", "--host", "127.0.0.1", "--port", "0", "--generate-format", "nosuch")
    assert result.returncode == 2
    assert "'nosuch'" in result.stderr
    assert "sglang, vllm" in result.stderr
    assert "Traceback" not in result.stderr


def test_paths_that_clash_exit_2() -> None:
    result = run("serve", "--host", "127.0.0.1", "--port", "0", "--sglang-generate-path", "/metrics")
    assert result.returncode == 2
    assert "'/metrics'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["serve", "demo", "sim"])
def test_port_in_use_exits_1_with_one_line(command: str, taken_port: int) -> None:
    flags = {"serve": ["serve", "--host", "127.0.0.1"], "demo": ["demo"], "sim": ["sim", "vllm"]}
    result = run(*flags[command], "--port", str(taken_port))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "in use" in result.stderr
    assert result.stdout == ""


def test_version_is_that_of_the_distribution() -> None:
    assert runner.invoke(app, ["version"]).output == f"{version('tito-gateway')}\n"
    assert run("version").stdout == f"{version('tito-gateway')}\n"


async def check(*urls: str, **environment: str) -> Any:
    flags = [flag for url in urls for flag in ("--worker", url)]
    return await asyncio.to_thread(runner.invoke, app, ["check", *flags], env=environment)


async def test_check_shows_what_each_worker_is() -> None:
    config = SimConfig(model="tiny", max_model_len=2048)
    async with SimServer("sglang", config) as first, SimServer("vllm", config) as second:
        result = await check(first.url, second.url)
    assert result.exit_code == 0
    heading, *rows = [line.split() for line in result.output.splitlines()]
    assert tuple(heading) == HEADINGS
    assert [row[:2] for row in rows] == [[first.url, "sglang"], [second.url, "vllm"]]
    for row in rows:
        assert "tiny" in row
        assert "2048" in row
        assert row[HEADINGS.index("USABLE")] == "yes"


async def test_check_exits_1_and_gives_the_reasons_when_no_worker_is_usable() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with SimServer("vllm", SimConfig(enable_scale_out=False)) as off:
        result = await check(off.url, dead)
    assert result.exit_code == 1
    rows = result.output.splitlines()[1:]
    assert "--enable-scale-out" in rows[0]
    assert "nobody listens" in rows[1]


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


@pytest.mark.parametrize("name", [field.name for field in fields(SimConfig)])
def test_every_knob_of_a_simulated_engine_is_a_flag(name: str) -> None:
    assert flag_of(name) in help_of("sim", "sglang")


def test_simulated_engine_says_where_it_listens_and_ends_with_its_parent() -> None:
    with running("sim", "vllm", "--model", "tiny", "--end-with-stdin") as sim:
        url = line_with(sim.stdout, "listening on ").split()[-1]
        assert not refuses(int(url.rsplit(":", 1)[1]))
        assert sim.stdin is not None
        sim.stdin.close()
        assert sim.wait(PATIENCE) == 0


def test_demo_shows_both_replies_and_ends_by_itself_when_asked() -> None:
    port = free_port()
    result = run("demo", "--once", "--port", str(port))
    assert result.returncode == 0, result.stderr
    assert '"output_ids"' in result.stdout
    assert "data: [DONE]" in result.stdout
    assert f"curl -s http://127.0.0.1:{port}/generate -H 'content-type: application/json' -d" in result.stdout
    assert refuses(port)


def ports_of(output: IO[str] | None) -> list[int]:
    """Ports that a demo shows, once it is up: four workers, then the gateway."""
    assert output is not None
    ports = [int(line_with(output, "http://").rsplit(":", 1)[1]) for _ in range(5)]
    line_with(output, "Ctrl-C")
    return ports


async def all_refuse(ports: list[int]) -> None:
    async with asyncio.timeout(PATIENCE):
        for port in ports:
            while not refuses(port):  # noqa: ASYNC110 - another process's socket: nothing to await
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_demo_ends_all_it_started_on_a_signal(number: signal.Signals) -> None:
    with running("demo", "--port", str(free_port())) as demo:
        ports = await asyncio.to_thread(ports_of, demo.stdout)
        assert not any(map(refuses, ports))
        demo.send_signal(number)
        assert await asyncio.to_thread(demo.wait, PATIENCE) == 0
    await all_refuse(ports)


async def test_demo_leaves_nothing_behind_when_it_is_killed() -> None:
    with running("demo", "--port", str(free_port())) as demo:
        ports = await asyncio.to_thread(ports_of, demo.stdout)
        os.kill(demo.pid, signal.SIGKILL)
        await all_refuse(ports)
