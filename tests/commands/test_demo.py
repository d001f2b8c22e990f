"""The demo prints its examples, and leaves no process behind."""

from __future__ import annotations

import asyncio
import signal
from typing import IO

import pytest

from tests.support.processes import PATIENCE, free_port, line_with, refuses, run, running


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_demo_leaves_nothing_behind_on_a_signal_or_when_it_is_killed(number: signal.Signals) -> None:
    with running("demo", "--port", str(free_port())) as demo:
        ports = await asyncio.to_thread(ports_of, demo.stdout)
        assert not any(map(refuses, ports))
        demo.send_signal(number)
        code = await asyncio.to_thread(demo.wait, PATIENCE)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    async with asyncio.timeout(PATIENCE):
        for port in ports:
            while not refuses(port):  # noqa: ASYNC110 - another process's socket: nothing to await
                await asyncio.sleep(0.02)
