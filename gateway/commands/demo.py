"""``tito-gateway demo``: a gateway and four simulated engines, to try without a GPU.

Owns: starting and ending those processes, and the printed examples. Must never enter: anything that the
gateway itself needs. The demo uses only the command line and the HTTP interface of the gateway.
"""

from __future__ import annotations

import http.client
import json
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from gateway.sim.dialects import DIALECTS

HOST = "127.0.0.1"
# Both engines refuse the content type that curl sends by default.
_JSON_HEADER = "content-type: application/json"

#: Simulated workers of each engine.
WORKERS_PER_ENGINE = 2

#: Seconds for all processes to become ready, and for one to end after SIGTERM.
START_LIMIT = 30.0
END_LIMIT = 3.0

Show = Callable[[str], None]
Process = subprocess.Popen[str]
Start = Callable[..., Process]


class DemoFailed(Exception):
    """The demo cannot run; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request that the demo prints and sends, with its title."""

    title: str
    path: str
    body: Mapping[str, Any]

    def curl(self, port: int) -> str:
        """Return the request as a shell command."""
        flags = "-sN" if self.body.get("stream") else "-s"
        body = shlex.quote(json.dumps(self.body))
        return f"curl {flags} http://{HOST}:{port}{self.path} -H '{_JSON_HEADER}' -d {body}"


UNARY = Example(
    "a unary request",
    "/generate",
    {"input_ids": [1, 2, 3, 4], "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
)
STREAM = Example(
    "a streaming request",
    "/generate",
    {"input_ids": [1, 2, 3, 4], "sampling_params": {"max_new_tokens": 4, "temperature": 0}, "stream": True},
)
OTHER_ENGINE = Example(
    "the other engine's API",
    "/inference/v1/generate",
    {"token_ids": [1, 2, 3, 4], "sampling_params": {"max_tokens": 4, "temperature": 0}},
)


def run_demo(port: int, show: Show, *, once: bool) -> None:
    """Start all processes, send two requests, and unless ``once`` wait for a signal. Raise DemoFailed."""
    _need_free(port)
    with _signals(), suppress(KeyboardInterrupt), _processes() as start:
        _run(port, show, start, once)


def _run(port: int, show: Show, start: Start, once: bool) -> None:
    show("starting two simulated workers of each engine, and the gateway")
    shown = (UNARY.path, OTHER_ENGINE.path)
    engines = [kind for kind, dialect in DIALECTS.items() if dialect.path in shown]
    kinds = [kind for kind in engines for _ in range(WORKERS_PER_ENGINE)]
    workers = [start("sim", kind, "--token-delay", "0.02", "--drain-poll", "0.05") for kind in kinds]
    urls = [_url_of(worker) for worker in workers]
    flags = [flag for url in urls for flag in ("--worker", url)]
    quiet = ("--log-level", "warning", "--no-access-log", "--graceful-shutdown-timeout-secs", "1")
    gateway = start("serve", "--host", HOST, "--port", str(port), *flags, *quiet)
    _wait_until_ready(port, gateway)
    for url, kind in zip(urls, kinds, strict=True):
        show(f"  {kind} worker  {url}")
    show(f"  gateway        http://{HOST}:{port}")
    for example in (UNARY, STREAM):
        show(f"\n# {example.title}\n$ {example.curl(port)}")
        for line in _send(example, port):
            show(line)
    if once:
        return
    show(f"\nTry these (/docs has the rest); Ctrl-C ends the demo:\n\n  {UNARY.curl(port)}\n")
    show(f"  {STREAM.curl(port)}\n\n  {OTHER_ENGINE.curl(port)}\n\n  curl -s http://{HOST}:{port}/metrics\n")
    code = gateway.wait()
    raise DemoFailed(f"the gateway ended with exit code {code}")


def _need_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise DemoFailed(
                f"port {port} cannot be used: {error.strerror}; choose one with --port"
            ) from None


@contextmanager
def _signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the demo as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT, too: a process that a shell starts in the background ignores it by default.
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in ending}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _processes() -> Iterator[Start]:
    """Yield a function that starts a command of the gateway; all end with this block.

    They also end with this process, however it ends, because they watch their standard input, of which only
    this process has the other end. They are sessions of their own, so that Ctrl-C of a terminal does not
    reach them.
    """
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        process: Process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *arguments, "--end-with-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
        for process in started:
            _end(process)


def _end(process: Process) -> None:
    try:
        process.wait(END_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()


def _url_of(worker: Process) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line.startswith("listening on "):
        raise DemoFailed("a simulated worker did not start")
    return line.split()[-1]


def _wait_until_ready(port: int, gateway: Process) -> None:
    limit = time.monotonic() + START_LIMIT
    while time.monotonic() < limit:
        with suppress(OSError, http.client.HTTPException, ValueError):
            if all(endpoint["workers"] >= WORKERS_PER_ENGINE for endpoint in _readiness(port)):
                return
        with suppress(subprocess.TimeoutExpired):
            gateway.wait(0.05)
            raise DemoFailed("the gateway did not start")
    raise DemoFailed(f"the gateway was not ready within {START_LIMIT:g} s")


def _readiness(port: int) -> Sequence[Mapping[str, Any]]:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/ready")
        endpoints: Sequence[Mapping[str, Any]] = json.loads(connection.getresponse().read())["endpoints"]
        return endpoints
    finally:
        connection.close()


def _send(example: Example, port: int) -> Iterator[str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=START_LIMIT)
    try:
        connection.request("POST", example.path, json.dumps(example.body), dict([_JSON_HEADER.split(": ")]))
        reply = connection.getresponse()
        for line in reply:
            if line.strip():
                yield line.decode().rstrip("\n")
        if reply.status != 200:
            raise DemoFailed(f"{example.path} answered {reply.status}")
    except (OSError, http.client.HTTPException) as error:
        raise DemoFailed(f"{example.path} gave no answer: {error}") from error
    finally:
        connection.close()
