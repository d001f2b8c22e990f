"""The simulated worker: a process that answers both dialects on many ports at very little cost.

Owns: its connections, replies and streams. Must never enter: generation (``tito-gateway sim`` has that, and
costs several times as much), parsing of JSON.

``python -m benchmarks.engine PORT...``. ``GET /tempo/N`` sets N events a second for each stream that follows
the tempo; ``GET /state`` counts the requests and the running streams.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import signal
import socket
import sys
import time
from collections.abc import Iterable
from typing import cast

import uvloop

from benchmarks.dialects import BY_PATH, DONE, OWN_PACE, STAMP_DIGITS, TEMPO_STAMPED, Dialect, Order

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_LAST = b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)
_MODEL = {
    "id": "sim",
    "object": "model",
    "created": 1,
    "owned_by": "sglang",
    "root": "sim",
    "max_model_len": 1 << 24,
}
_SERVER = {
    "architectures": ["LlamaForCausalLM"],
    "disaggregation_mode": "null",
    "dp_size": 1,
    "incremental_streaming_output": True,
    "internal_states": [{}],
    "is_generation": True,
    "max_running_requests": 8192,
    "max_total_num_tokens": 1 << 24,
    "model_path": "sim",
    "model_type": "llama",
    "served_model_name": "sim",
    "tokenizer_path": "sim",
    "tp_size": 1,
    "version": "0.5.22",
    "weight_version": "default",
}
_ANSWERS = {
    path: json.dumps(answer).encode()
    for paths, answer in (
        (("/server_info", "/get_server_info", "/model_info", "/get_model_info"), _SERVER),
        (("/v1/models",), {"object": "list", "data": [_MODEL]}),
        (("/version",), {"version": "0.33.0"}),
        (("/health", "/health_generate", "/ready", "/abort_request", "/inference/v1/abort_requests"), {}),
        (("/get_load", "/get_loads"), []),
    )
    for path in paths
}


class Engine:
    """The state that all connections of a worker share."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.requests = 0
        self.running: set[Stream] = set()
        #: Seconds between two events of a stream that follows the tempo.
        self.interval = 1.0
        self._bursting: list[Stream] = []
        self._turning = False

    def burst(self, stream: Stream) -> None:
        """Let ``stream`` send one event in each turn of the loop."""
        self._bursting.append(stream)
        self.turn()

    def turn(self) -> None:
        """Schedule the next events of the streams that burst, if any may write."""
        if not self._turning:
            self._turning = True
            self.loop.call_soon(self._step)

    def _step(self) -> None:
        self._bursting = [
            each for each in self._bursting if not each.over and (each.paused or not each.send())
        ]
        self._turning = any(not each.paused for each in self._bursting)
        if self._turning:
            self.loop.call_soon(self._step)

    def answer(self, path: bytes) -> bytes:
        """Return the body for a path that does not generate."""
        if path.startswith(b"/tempo/"):
            self.interval = 1 / float(path[7:])
        if path == b"/state":
            return json.dumps({"requests": self.requests, "running": len(self.running)}).encode()
        return _ANSWERS.get(path.decode(), b"{}")


class Stream:
    """A streamed reply that is being sent."""

    __slots__ = ("connection", "dialect", "due", "engine", "order", "over", "paused", "sent", "timer")

    def __init__(self, connection: Connection, dialect: Dialect, order: Order) -> None:
        self.connection = connection
        self.engine = connection.engine
        self.dialect = dialect
        self.order = order
        self.over = False
        self.paused = False
        self.sent = 0
        self.due = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.engine.running.add(self)

    def start(self) -> None:
        """Send the head and the first event in one write, because a router without TCP_NODELAY would delay
        the second.
        """
        self.due = self.engine.loop.time()
        if self.send(_STREAM_HEAD):
            return
        if self.order.knobs.pace != OWN_PACE:
            # Streams that were opened together must not send at the same time.
            self._wait(random.random() * self.engine.interval)
        elif self.order.knobs.pause_us:
            self._wait(self.order.knobs.pause_us / 1e6)
        else:
            self.engine.burst(self)

    def _wait(self, seconds: float) -> None:
        self.due += seconds
        self.timer = self.engine.loop.call_at(self.due, self._send_on_tempo)

    def _send_on_tempo(self) -> None:
        # A client that does not read skips events: a real engine would not send them either.
        if not self.paused and self.send():
            return
        own = self.order.knobs.pace == OWN_PACE
        self._wait(self.order.knobs.pause_us / 1e6 if own else self.engine.interval)

    def send(self, head: bytes = b"") -> bool:
        """Send the next event; return True if it was the last one."""
        self.sent += 1
        text = b"t"
        if self.order.knobs.pace == TEMPO_STAMPED:
            text = b"@%0*d" % (STAMP_DIGITS, time.monotonic_ns())
        event = self.dialect.event_of(self.order, self.sent, text)
        last = self.sent >= self.order.tokens
        self.connection.write(b"%b%x\r\n%b\r\n%b" % (head, len(event), event, _LAST if last else b""))
        if last:
            self.end()
        return last

    def end(self) -> None:
        """Stop sending."""
        self.over = True
        self.engine.running.discard(self)
        self.connection.stream = None
        if self.timer is not None:
            self.timer.cancel()


class Connection(asyncio.Protocol):
    """A client's connection, on which a request arrives only after the reply to the one before."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.stream: Stream | None = None
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()
        self._need = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.stream is not None:
            self.stream.end()

    def pause_writing(self) -> None:
        if self.stream is not None:
            self.stream.paused = True

    def resume_writing(self) -> None:
        if self.stream is not None:
            self.stream.paused = False
            self.engine.turn()

    def write(self, data: bytes) -> None:
        """Send ``data`` if the client is still connected."""
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._held += data
            if len(self._held) < self._need:
                return
            data = bytes(self._held)
            self._held.clear()
        end = data.find(b"\r\n\r\n") + 4
        need = end + _content_length(data[:end]) if end >= 4 else 0
        if end < 4 or len(data) < need:
            self._held += data
            self._need = need
            return
        self._handle(data[:end], data[end:])

    def _handle(self, head: bytes, body: bytes) -> None:
        # A request in HTTP/2, which some routers try first, has no such line; its reply is not understood
        # anyway.
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        dialect = BY_PATH.get(path)
        if dialect is None:
            self._reply(self.engine.answer(path))
        elif dialect.ids_key.encode() not in body:
            message = b'{"error":{"message":"token_ids is missing","type":"BadRequestError","code":400}}'
            self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n%b" % (len(message), message))
        else:
            self._generate(dialect, dialect.order(head, body))

    def _generate(self, dialect: Dialect, order: Order) -> None:
        self.engine.requests += 1
        if order.stream:
            self.stream = Stream(self, dialect, order)
            begin = self.stream.start
        else:
            begin = lambda: self._reply(dialect.unary(order))  # noqa: E731 - one of two ways to begin
        if order.knobs.first_us:
            self.engine.loop.call_later(order.knobs.first_us / 1e6, begin)
        else:
            begin()

    def _reply(self, body: bytes) -> None:
        self.write(_HEAD % len(body) + body)


def _content_length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    return int(head[at + 17 : head.index(b"\r\n", at + 17)]) if at >= 0 else 0


async def serve(ports: Iterable[int]) -> None:
    """Serve all ``ports`` of the loopback address until SIGTERM."""
    loop = asyncio.get_running_loop()
    engine = Engine()
    for port in ports:
        await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    gc.freeze()
    await stop.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(map(int, sys.argv[1:])))
