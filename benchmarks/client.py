"""The load generator: a process that sends requests, reads and counts replies, controlled by lines of JSON.

Owns: its connections and their counts. Must never enter: the parsing of events, which would make it slower
than the gateway; it finds only the ends of events and replies, and the time in stamped events.

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

#: Seconds to wait for the last replies of a load.
PATIENCE = 20.0
_ROOM = 1 << 18
#: One buffer for all connections: the data of a read is processed before the next read.
_BUFFER = bytearray(_ROOM)
_VIEW = memoryview(_BUFFER)
_TAIL = 7
_CHUNKED_END = b"\r\n0\r\n\r\n"


class Client:
    """The load generator's connections, with the state and the counts they share."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.window = Window()
        self.connections: list[Connection] = []
        #: Connections that wait for a reply or its first byte, and the future that is resolved when none does
        #: any more.
        self.waiting: set[Connection] = set()
        self.settled = asyncio.Event()
        self.stopping = False

    def stop_waiting(self, connection: Connection) -> None:
        """Note that ``connection`` no longer waits for anything."""
        self.waiting.discard(connection)
        if not self.waiting:
            self.settled.set()

    async def connect(self, count: int, command: dict[str, Any]) -> None:
        """Open connections in groups that fit into a listen backlog."""
        for start in range(0, count, 128):
            group = range(start, min(count, start + 128))
            made = await asyncio.gather(
                *(
                    self.loop.create_connection(
                        partial(Connection, self, command, number), "127.0.0.1", command["port"]
                    )
                    for number in group
                )
            )
            self.connections += [protocol for _, protocol in made]

    async def load(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send requests on each connection one after another for ``seconds``, then wait for the running
        replies.

        Rates are computed over those seconds. All other figures include the late replies, because the
        processor time does as well.
        """
        await self.connect(command["connections"], command)
        self.window = window = Window()
        self._send_all()
        await asyncio.sleep(command["seconds"])
        self.stopping = True
        seconds = time.monotonic() - window.started
        rates = {"replies_per_s": window.replies / seconds, "events_per_s": window.events / seconds}
        await self._settle(PATIENCE)
        return window.summary() | rates | await self.close(command)

    async def once(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send one request on each connection and read each reply to its end."""
        await self.connect(command["connections"], command)
        self.window = Window()
        self.stopping = True
        self._send_all()
        await self._settle(command["seconds"])
        return self.window.summary() | await self.close(command)

    async def open(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send one request on each connection; return once each has its first bytes, while the replies
        continue.
        """
        self.stopping = True
        start, before = len(self.connections), self.window.errors
        for begin in range(0, command["connections"], 512):
            await self.connect(min(512, command["connections"] - begin), command)
            self._send_all(start + begin)
            await self._settle(command["seconds"])
        return {"open": len(self.connections), "errors": self.window.errors - before}

    def _send_all(self, start: int = 0) -> None:
        self.settled.clear()
        self.waiting.update(self.connections[start:])
        for connection in self.connections[start:]:
            connection.send_request()

    async def _settle(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.settled.wait()
        except TimeoutError:
            self.window.errors += len(self.waiting)
            self.waiting.clear()

    async def observe(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the counts of the next ``seconds``."""
        self.window = Window()
        await asyncio.sleep(command["seconds"])
        return self.window.summary()

    async def close(self, command: dict[str, Any]) -> dict[str, Any]:
        """Close all connections, whatever replies are running."""
        for connection in self.connections:
            connection.close()
        self.connections.clear()
        self.waiting.clear()
        self.stopping = False
        await asyncio.sleep(0.05)
        return {}


class Connection(asyncio.BufferedProtocol):
    """One connection, which sends requests one after another."""

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
        self._sent_at = self._due = 0.0
        self._head: bytes | None = b""
        #: Bytes of the body not yet read; None for a chunked body.
        self._remaining: int | None = None
        self._tail = b""
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            self._client.window.errors += 1
            self._client.stop_waiting(self)

    def close(self) -> None:
        """Close the connection; later errors are not counted."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def send_request(self) -> None:
        """Send the request. With an interval, its latency counts from the time at which it was due."""
        if self._transport is None:
            return
        self._head, self._tail, self._received = b"", b"", 0
        self._sent_at = time.monotonic()
        if self._interval:
            self._due = self._due + self._interval if self._due else self._sent_at
            self._sent_at = self._due
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
        if self._remaining is None:
            ended = self._chunks(start, size)
        else:
            self._remaining -= size - start
            ended = self._remaining <= 0
        if ended:
            self._on_reply_end()
        elif self._rate:
            self._slow_down(size)

    def _read_head(self, size: int) -> int:
        """Return the offset of the body; the head stays in the buffer until it is complete."""
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
        self._remaining = int(head[at + 17 : head.index(b"\r\n", at + 17)]) if at >= 0 else None
        self._head = None
        if self._only_first:
            self._client.stop_waiting(self)
        return end - held

    def _chunks(self, start: int, size: int) -> bool:
        """Count the events that end in the new data; return True if the reply ends there."""
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
        self._received += size
        ahead = self._received / self._rate - (time.monotonic() - self._sent_at)
        if ahead > 0.001 and self._transport is not None:
            self._transport.pause_reading()
            self._client.loop.call_later(ahead, self._resume)

    def _resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def _on_reply_end(self) -> None:
        client, now = self._client, time.monotonic()
        client.window.replies += 1
        client.window.latencies.append(now - self._sent_at)
        if client.stopping:
            client.stop_waiting(self)
        elif self._interval:
            client.loop.call_later(max(0.0, self._due + self._interval - now), self._send_or_stop)
        else:
            self.send_request()

    def _send_or_stop(self) -> None:
        if self._client.stopping:
            self._client.stop_waiting(self)
        else:
            self.send_request()


async def run_commands() -> None:
    """Execute commands from standard input until it ends."""
    client = Client()
    lines = asyncio.StreamReader(limit=1 << 28)
    await client.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    handlers = {name: getattr(client, name) for name in ("load", "once", "open", "observe", "close")}
    gc.freeze()
    while line := await lines.readline():
        command = json.loads(line)
        answer = await handlers[command["do"]](command)
        os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_commands())
