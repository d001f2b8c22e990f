"""A supervisor of scripted processes: ``python -m tests.prefork.scripted_processes SCRIPT``.

For test_supervisor.py, whose own process has threads and must not fork. Standard error is the log.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from contextlib import suppress

from gateway.prefork import supervisor
from gateway.prefork.frames import Frame, FrameParser, Verb
from gateway.prefork.locks import WriteLocks
from gateway.prefork.log_writer import LogWriter
from gateway.prefork.port import Port
from gateway.prefork.supervisor import Serve, Supervisor
from gateway.process.server import listen
from gateway.telemetry.logs import Logs


def fails(listener: socket.socket, channel: socket.socket, number: int, replacement: bool) -> int:
    raise RuntimeError("a fault of the process")


def replacement_exits(listener: socket.socket, channel: socket.socket, number: int, replacement: bool) -> int:
    """Serve, and exit at once if this is a replacement."""
    if not replacement:
        return serves(listener, channel, number, replacement)
    channel.sendall(Frame(Verb.SERVING).encode())
    return 1


def hangs(listener: socket.socket, channel: socket.socket, number: int, replacement: bool) -> int:
    channel.sendall(Frame(Verb.SERVING).encode())
    threading.Event().wait()
    return 0


def serves(listener: socket.socket, channel: socket.socket, number: int, replacement: bool) -> int:
    """Serve until the supervisor asks to end."""
    channel.sendall(Frame(Verb.SERVING).encode())
    frames = FrameParser()
    while data := channel.recv(65536):
        for frame in frames.feed(data):
            if frame.verb is Verb.END:
                return 0
            if b'"draining": true' in frame.body:
                channel.sendall(Frame(Verb.RUNNING, 0, b"0").encode())
    return 0


def beats(listener: socket.socket, channel: socket.socket, number: int, replacement: bool) -> int:
    """Serve, and send a frame every 50 ms, until the supervisor asks to end."""
    channel.settimeout(0.05)
    channel.sendall(Frame(Verb.SERVING).encode())
    received = b""
    while b"end " not in received:
        channel.sendall(Frame(Verb.RUNNING, 0, b"0").encode())
        with suppress(TimeoutError):
            received += channel.recv(65536)
    return 0


SCRIPTS: dict[str, Serve] = {each.__name__: each for each in (serves, fails, replacement_exits, hangs, beats)}


def main(script: str, count: int = 2) -> int:
    supervisor.END_TIMEOUT = 0.2
    if script == "beats":
        supervisor.HANG_TIMEOUT, supervisor.POLL_INTERVAL = 0.6, 0.1
    log_writer = LogWriter(2, WriteLocks().of(2))
    with Logs("info", writer=log_writer):
        port = Port(listen("127.0.0.1", 0, 10), 10)
        return Supervisor(count, 30.0, port, SCRIPTS[script], log_writer).run()


if __name__ == "__main__":
    signal.alarm(30)
    sys.exit(main(sys.argv[1]))
