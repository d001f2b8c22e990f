"""Commands of ours in processes of their own, as users run them."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

#: Room for a machine that is busy with other tests.
PATIENCE = 50


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


def free_port() -> int:
    """A port that nobody has, and none of those that the system gives out by itself to others meanwhile."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
