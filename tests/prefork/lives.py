"""A supervisor of made-up processes: ``python -m tests.prefork.lives STORY`` for test_supervisor.py.

Its standard error is the log. Not in the tests' own process, which has threads.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from contextlib import suppress

from gateway.prefork import supervisor
from gateway.prefork.frames import Frame, Frames, Verb
from gateway.prefork.locks import WriteLocks
from gateway.prefork.log_writer import LogWriter
from gateway.prefork.port import Port
from gateway.prefork.supervisor import Serve, Supervisor
from gateway.process.server import listen
from gateway.telemetry.logs import Logs


def raises(listener: socket.socket, channel: socket.socket, again: bool) -> int:
    raise RuntimeError("a fault of the process")


def dies_again(listener: socket.socket, channel: socket.socket, again: bool) -> int:
    """Each dies as soon as it serves."""
    channel.sendall(Frame(Verb.SERVING).encode())
    return 1 if again else serves(listener, channel, again)


def hangs(listener: socket.socket, channel: socket.socket, again: bool) -> int:
    channel.sendall(Frame(Verb.SERVING).encode())
    threading.Event().wait()
    return 0


def serves(listener: socket.socket, channel: socket.socket, again: bool) -> int:
    """Until it is told to end."""
    channel.sendall(Frame(Verb.SERVING).encode())
    frames = Frames()
    while data := channel.recv(65536):
        for frame in frames.feed(data):
            if frame.verb is Verb.END:
                return 0
            if b'"draining": true' in frame.body:
                channel.sendall(Frame(Verb.OPEN, 0, b"0").encode())
    return 0


def beats(listener: socket.socket, channel: socket.socket, again: bool) -> int:
    """Says something time and again, as real ones do, until it is told to end."""
    channel.settimeout(0.05)
    channel.sendall(Frame(Verb.SERVING).encode())
    said = b""
    while b"end " not in said:
        channel.sendall(Frame(Verb.OPEN, 0, b"0").encode())
        with suppress(TimeoutError):
            said += channel.recv(65536)
    return 0


STORIES: dict[str, Serve] = {each.__name__: each for each in (serves, raises, dies_again, hangs, beats)}


def main(story: str, count: int = 2) -> int:
    supervisor.LAST_GRACE = 0.2
    if story == "beats":
        supervisor.HUNG, supervisor.LOOK_EVERY = 0.6, 0.1
    lines = LogWriter(2, WriteLocks().of(2))
    with Logs("info", writer=lines):
        port = Port(listen("127.0.0.1", 0, 10), 10)
        return Supervisor(count, 30.0, port, STORIES[story], lines).run()


if __name__ == "__main__":
    signal.alarm(30)
    sys.exit(main(sys.argv[1]))
