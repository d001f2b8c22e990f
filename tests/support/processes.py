"""The gateway's commands in processes of their own, as users run them.

A process ends with the block that started it. When the test run ends without leaving the block, the guardian
(tests/support/guardian.py) kills the process.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1024 * 1024
#: Seconds; enough on a machine that is busy with other tests.
PATIENCE = 50


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments], capture_output=True, text=True, timeout=PATIENCE
    )


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command, which is killed at the end of the block."""
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


@asynccontextmanager
async def spawned(
    *arguments: str,
    variables: Mapping[str, str] = MappingProxyType({}),
    output: int = PIPE,
    limit: int | None = None,
) -> AsyncIterator[Process]:
    """Start ``python -m`` from an event loop, with ``variables`` in its environment.

    It is killed at the end of the block. ``limit`` is the number of files it may open.
    """
    command = (sys.executable, "-m", *arguments)
    process = await asyncio.create_subprocess_exec(
        *(command if limit is None else ("bash", "-c", f'ulimit -n {limit}; exec "$0" "$@"', *command)),
        env={**os.environ, **variables},  # noqa: TID251 - a child needs the parent's
        stdout=output,
        stderr=output,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def line_with(stream: IO[str] | None, text: str) -> str:
    """Return the first line of ``stream`` that contains ``text``."""
    assert stream is not None
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


def free_port() -> int:
    """Return a free port outside of the range from which the system assigns ports by itself."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def resident(pid: int) -> int:
    """Resident memory of a process that is its own (not shared with files), in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def fill_pipe(fd: int) -> None:
    """Write to the pipe ``fd`` until it is full, and leave it in blocking mode."""
    os.set_blocking(fd, False)
    try:
        while True:
            os.write(fd, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(fd, True)
