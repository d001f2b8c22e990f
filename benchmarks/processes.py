"""The processes of a benchmark.

Owns: their start, ports, logs and end, in any case. Must never enter: what any of them is for.
"""

from __future__ import annotations

import http.client
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

#: Seconds that a process has to end by itself.
GRACE = 10.0


class NotStarted(Exception):
    """A process did not start; the text contains the end of its log."""


class Processes:
    """All processes of a run and the folder of their logs, which end with the ``with`` block."""

    def __init__(self, logs: Path | None = None) -> None:
        self._stack = ExitStack()
        self._ports: set[int] = set()
        self.folder = logs or Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        self.folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        piped: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start ``command``; its output goes to ``name``.log. With ``piped`` the caller reads and writes it
        instead.
        """
        log = self._stack.enter_context(self.log(name).open("wb"))
        pipe = subprocess.PIPE if piped else None
        process = subprocess.Popen(
            command,
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or log,
            stderr=log,
            env=environment,
            cwd=folder,
        )
        self._stack.callback(end, process)
        return process

    def log(self, name: str) -> Path:
        """Return the path of the log of ``name``."""
        return self.folder / f"{name}.log"

    def tail(self, name: str) -> str:
        """Return the end of that log."""
        return self.log(name).read_text(errors="replace")[-800:].strip() or "(nothing)"

    def port(self) -> int:
        """Return a port that is free, and outside the range from which the system assigns ports."""
        while True:
            port = random.randrange(10_000, 32_000)
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", port))
                if port not in self._ports:
                    self._ports.add(port)
                    return port

    def wait(  # noqa: PLR0913 - where it is asked, and for how long
        self,
        name: str,
        process: subprocess.Popen[bytes],
        port: int,
        path: str,
        seconds: float = 40.0,
        host: str = "127.0.0.1",
    ) -> None:
        """Return once ``path`` answers 200. Raises NotStarted."""
        deadline = time.monotonic() + seconds
        while get(port, path, host) != 200:
            if process.poll() is not None or time.monotonic() > deadline:
                fate = (
                    "ended" if process.poll() is not None else f"answered no 200 on {path} in {seconds:.0f} s"
                )
                raise NotStarted(f"{name} {fate}; its log ends: {self.tail(name)}")
            time.sleep(0.005)


def end(process: subprocess.Popen[bytes] | None) -> float:
    """End a process, by SIGKILL if needed; return the seconds it took."""
    start = time.monotonic()
    if process is None:
        return 0.0
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pipe in (process.stdin, process.stdout):
        _close(pipe)
    return time.monotonic() - start


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with suppress(BrokenPipeError):
            pipe.close()


def get(port: int, path: str, host: str = "127.0.0.1") -> int:
    """Return the status of a GET, 0 without a reply."""
    return ask(port, "GET", path, host=host)[0]


def ask(port: int, method: str, path: str, body: bytes = b"", host: str = "127.0.0.1") -> tuple[int, bytes]:
    """Return status and body of one request on a new connection; the status is 0 without a reply."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path, body or None, {"content-type": "application/json"} if body else {})
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
