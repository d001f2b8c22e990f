"""The load generator: a process that asks, reads and counts, told what to do by lines of JSON.

Owns: its connections and what they saw. Must never enter: the parsing of events, which would make it slower
than what it measures; it finds the ends of events and replies, and the time in events that are stamped.

``python -m benchmarks.client`` reads one command a line from standard input and answers each with a line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
import time
from functools import partial
from typing import Any, cast

import uvloop

from benchmarks.dialects import STAMP, STAMP_DIGITS
from benchmarks.windows import Window

#: Seconds that the last replies of a load may take.
PATIENCE = 20.0
_ROOM = 1 << 18
#: One buffer for all connections: what a read brings is looked at before the next one.
_BUFFER = bytearray(_ROOM)
_VIEW = memoryview(_BUFFER)
_TAIL = 7
_CHUNKED_END = b"\r\n0\r\n\r\n"


class Client:
    """What the connections of the generator share."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.window = Window()
        self.connections: list[Connection] = []
        #: Connections that owe a reply, or the first byte of one, and what is told when none does any more.
        self.owing: set[Connection] = set()
        self.settled = asyncio.Event()
        self.stopping = False

    def paid(self, connection: Connection) -> None:
        """Nothing is awaited from ``connection`` any more."""
        self.owing.discard(connection)
        if not self.owing:
            self.settled.set()

    async def connect(self, count: int, command: dict[str, Any]) -> None:
        """Open connections in lots that a backlog can hold."""
        for start in range(0, count, 128):
            lot = range(start, min(count, start + 128))
            made = await asyncio.gather(
                *(
                    self.loop.create_connection(
                        partial(Connection, self, command, number), "127.0.0.1", command["port"]
                    )
                    for number in lot
                )
            )
            self.connections += [protocol for _, protocol in made]

    async def load(self, command: dict[str, Any]) -> dict[str, Any]:
        """Ask on each connection again and again, for ``seconds``; then let the running replies end.

        Rates are of those seconds, all else is of the whole: what it cost was spent on the late ones, too.
        """
        await self.connect(command["connections"], command)
        self.window = window = Window()
        self._ask_all()
        await asyncio.sleep(command["seconds"])
        self.stopping = True
        seconds = time.monotonic() - window.started
        rates = {"replies_per_s": window.replies / seconds, "events_per_s": window.events / seconds}
        await self._settle(PATIENCE)
        return window.summary() | rates | await self.close(command)

    async def once(self, command: dict[str, Any]) -> dict[str, Any]:
        """One reply on each connection, read to its end."""
        await self.connect(command["connections"], command)
        self.window = Window()
        self.stopping = True
        self._ask_all()
        await self._settle(command["seconds"])
        return self.window.summary() | await self.close(command)

    async def open(self, command: dict[str, Any]) -> dict[str, Any]:
        """Ask once on each connection and go on, once each has its first bytes, while replies come in."""
        self.stopping = True
        start, before = len(self.connections), self.window.errors
        for begin in range(0, command["connections"], 512):
            await self.connect(min(512, command["connections"] - begin), command)
            self._ask_all(start + begin)
            await self._settle(command["seconds"])
        return {"open": len(self.connections), "errors": self.window.errors - before}

    def _ask_all(self, start: int = 0) -> None:
        self.settled.clear()
        self.owing.update(self.connections[start:])
        for connection in self.connections[start:]:
            connection.ask()

    async def _settle(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.settled.wait()
        except TimeoutError:
            self.window.errors += len(self.owing)
            self.owing.clear()

    async def look(self, command: dict[str, Any]) -> dict[str, Any]:
        """What came within the next ``seconds``."""
        self.window = Window()
        await asyncio.sleep(command["seconds"])
        return self.window.summary()

    async def close(self, command: dict[str, Any]) -> dict[str, Any]:
        """Leave every reply."""
        for connection in self.connections:
            connection.close()
        self.connections.clear()
        self.owing.clear()
        self.stopping = False
        await asyncio.sleep(0.05)
        return {}


class Connection(asyncio.BufferedProtocol):
    """One connection, on which requests follow one another."""

    def __init__(self, client: Client, command: dict[str, Any], number: int) -> None:
        self._client = client
        path, body = command["path"], command["body"].encode()
        head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        self._request = head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        if (probes := command.get("probes")) and number % command["every"] == 0:
            self._request = head.encode() + b"content-length: %d\r\n\r\n%b" % (len(probes), probes.encode())
        self._only_first = command["do"] == "open"
        self._interval = command.get("interval", 0.0)
        self._rate = command.get("read_rate", 0.0)
        self._transport: asyncio.Transport | None = None
        self._asked = self._due = 0.0
        self._head: bytes | None = b""
        #: Bytes of the body still to come; None: it is chunked.
        self._left: int | None = None
        self._tail = b""
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._client.window.errors += 1
            self._client.paid(self)

    def close(self) -> None:
        """Leave; nobody is told of errors."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def ask(self) -> None:
        """Send the request; its latency counts from when it was due, if there is an interval."""
        if self._transport is None:
            return
        self._head, self._tail, self._got = b"", b"", 0
        self._asked = time.monotonic()
        if self._interval:
            self._due = self._due + self._interval if self._due else self._asked
            self._asked = self._due
        self._transport.write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:
        return _BUFFER

    def buffer_updated(self, size: int) -> None:
        window = self._client.window
        window.bytes += size
        start = 0
        if self._head is not None:
            start = self._read_head(size)
            if self._head is not None:
                return
        if self._left is None:
            ended = self._chunks(start, size)
        else:
            self._left -= size - start
            ended = self._left <= 0
        if ended:
            self._ended()
        elif self._rate:
            self._slow_down(size)

    def _read_head(self, size: int) -> int:
        """Where the body starts; the head stays unread until it is whole."""
        assert self._head is not None
        held = len(self._head)
        text = self._head + bytes(_VIEW[:size])
        end = text.find(b"\r\n\r\n") + 4
        if end < 4:
            self._head = text
            return size
        head = text[:end].lower()
        if not head.startswith(b"http/1.1 200"):
            self._client.window.errors += 1
        at = head.find(b"\r\ncontent-length:")
        self._left = int(head[at + 17 : head.index(b"\r\n", at + 17)]) if at >= 0 else None
        self._head = None
        if self._only_first:
            self._client.paid(self)
        return end - held

    def _chunks(self, start: int, size: int) -> bool:
        """Count the events that end in what came, and tell whether the reply does."""
        window = self._client.window
        events = _BUFFER.count(b"\n\n", start, size)
        if self._tail.endswith(b"\n") and size > start and _BUFFER[start] == 10:
            events += 1
        window.events += events
        if events and (at := _BUFFER.find(STAMP, start, size)) >= 0:
            at += len(STAMP)
            if at + STAMP_DIGITS <= size:
                sent = int(_BUFFER[at : at + STAMP_DIGITS])
                window.delays.append((time.monotonic_ns() - sent) / 1e9)
        self._tail = (self._tail + bytes(_VIEW[max(start, size - _TAIL) : size]))[-_TAIL:]
        return self._tail == _CHUNKED_END

    def _slow_down(self, size: int) -> None:
        """Read no more than ``read_rate`` bytes a second."""
        self._got += size
        ahead = self._got / self._rate - (time.monotonic() - self._asked)
        if ahead > 0.001 and self._transport is not None:
            self._transport.pause_reading()
            self._client.loop.call_later(ahead, self._resume)

    def _resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def _ended(self) -> None:
        client, now = self._client, time.monotonic()
        client.window.replies += 1
        client.window.latencies.append(now - self._asked)
        if client.stopping:
            client.paid(self)
        elif self._interval:
            client.loop.call_later(max(0.0, self._due + self._interval - now), self._ask_or_stop)
        else:
            self.ask()

    def _ask_or_stop(self) -> None:
        if self._client.stopping:
            self._client.paid(self)
        else:
            self.ask()


async def obey() -> None:
    """Carry out commands until there are no more."""
    client = Client()
    lines = asyncio.StreamReader(limit=1 << 28)
    await client.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    does = {name: getattr(client, name) for name in ("load", "once", "open", "look", "close")}
    gc.freeze()
    while line := await lines.readline():
        command = json.loads(line)
        answer = await does[command["do"]](command)
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(obey())
