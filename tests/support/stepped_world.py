"""A gateway on the stepped time and network of tests.support.stepping, for tests of races.

The listener, the handler, the aborter, the pools and the workers' connections are the product's own.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from uvicorn.server import ServerState

from gateway import catalog
from gateway.downstream.connection import ClientConnection
from gateway.downstream.limits import ClientLimits
from gateway.downstream.start_pacing import StartPacer
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.proxy.handler import GenerateHandler
from gateway.settings import Settings
from gateway.stores.memory import MemoryStore
from gateway.upstream.address import Address
from gateway.upstream.connection import Connection
from gateway.upstream.via import Via
from gateway.wiring.app import SharedResources, make_services
from gateway.wiring.security import sources_of
from tests.support.generate import KINDS, PROMPT
from tests.support.socketless import STREAM_END, STREAM_HEAD, begin_serving, event, keep, post, unary_reply
from tests.support.stepping import SteppedLoop, Wire


class ReceivedRequest:
    """A generate request that a worker received, and the rest of its reply."""

    def __init__(self, kind: str, worker: Worker, wire: Wire, head: bytes, body: bytes) -> None:
        self.worker = worker
        self.wire = wire
        request = json.loads(body)
        self.prompt = request[PROMPT[kind]]
        self.id = _dispatch_id(kind, head, request)
        self._pieces = list(_stream(kind, self.id) if request["stream"] else _unary(kind, self.id))

    def step(self) -> None:
        """The worker sends the next piece of its reply."""
        if self._pieces:
            self.wire.feed(self._pieces.pop(0))

    def finish(self) -> None:
        """The worker sends the rest of its reply."""
        while self._pieces:
            self.step()


class World:
    """One gateway in front of ``workers`` workers of one ``kind``."""

    def __init__(self, kind: str, workers: int = 1) -> None:
        self.kind = kind
        self.services, self.format = _services(kind, workers)
        self.requests: list[ReceivedRequest] = []
        #: Ids that were aborted, each with the worker that was sent the abort.
        self.aborts: list[tuple[Worker, str]] = []
        self.holds_dials = False
        self._dials: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        loop.dial = self._connect
        self.write_batch = self.services.fleet.connector.write_batch
        handler = GenerateHandler(KINDS[kind], self.format, self.services)
        self._app = SimpleNamespace(
            start_pacer=StartPacer(),
            direct_route=lambda path, method: handler.begin,
            write_batch=self.write_batch,
            unreachable_peers=self.services.fleet.connector.unreachable_peers,
            limits=ClientLimits(head_seconds=3600, body_seconds=3600, idle_seconds=3600),
            limit_reached=lambda limit: None,
            lifecycle=self.services.lifecycle,
        )
        begin_serving(self.services.fleet, self.format)

    @property
    def workers(self) -> Sequence[Worker]:
        found: Sequence[Worker] = self.services.fleet.workers
        return found

    def client(self, number: int, id: str, *, stream: bool) -> Wire:
        """A client that has sent a request, whose prompt is ``number``."""
        config = SimpleNamespace(app=self._app)
        wire = Wire(ClientConnection(cast(Any, config), ServerState(), {}))
        member = {"sglang": "rid", "vllm": "request_id"}[self.kind]
        body = {PROMPT[self.kind]: [number], member: id, "stream": stream, "sampling_params": {}}
        wire.feed(post(KINDS[self.kind], json.dumps(body).encode()))
        return wire

    def of(self, number: int) -> list[ReceivedRequest]:
        """The requests at workers whose prompt is ``number``."""
        return [request for request in self.requests if request.prompt == [number]]

    def keep_connections(self) -> None:
        """Each worker has a connection that was used before."""
        for worker in self.workers:
            connection = Connection(bytearray(32 * 1024), self.write_batch)
            self._wire(connection, worker.address.port)
            keep(worker, connection)

    def drop_connections(self) -> None:
        """No worker has one that is idle."""
        for worker in self.workers:
            worker.pool._idle.clear()

    async def _connect(self, factory: Callable[[], Any], port: int) -> tuple[Wire, Any]:
        if self.holds_dials:
            self._dials.append(asyncio.get_running_loop().create_future())
            await self._dials[-1]
        protocol = factory()
        return self._wire(protocol, port), protocol

    def _wire(self, protocol: Any, port: int) -> Wire:
        [worker] = [worker for worker in self.workers if worker.address.port == port]
        return Wire(protocol, lambda wire, data: self.on_request(worker, wire, data))

    def dial(self, *, fails: bool = False) -> None:
        """The oldest dial that waits comes to its end."""
        self._dials = [dial for dial in self._dials if not dial.done()]
        if self._dials:
            dial = self._dials.pop(0)
            if fails:
                dial.set_exception(ConnectionRefusedError())
            else:
                dial.set_result(None)

    def release_dials(self) -> None:
        """All that wait, and all to come, succeed."""
        self.holds_dials = False
        while self._dials:
            self.dial()

    def on_request(self, worker: Worker, wire: Wire, data: bytes) -> None:
        """Handle ``data``, a complete request sent to ``worker``."""
        head, _, body = data.partition(b"\r\n\r\n")
        if head.split(b" ")[1] == KINDS[self.kind].encode():
            self.requests.append(ReceivedRequest(self.kind, worker, wire, head, body))
            return
        self.aborts += [(worker, id) for id in _named(json.loads(body))]
        asyncio.get_running_loop().call_soon(wire.feed, unary_reply(b"{}"))

    def counted(self) -> dict[str, int]:
        """Requests that the metrics say have ended, by their status: success, error."""
        requests = self.services.metrics.tallies.requests
        failed = sum(count for (*_, error), count in requests.items() if error)
        return {"success": requests.total() - failed, "error": failed}


@cache
def _settings(workers: int) -> tuple[Settings, Mapping[str, AnyFormat]]:
    urls = tuple(f"http://127.0.0.1:{port}" for port in range(1, workers + 1))
    settings = Settings(worker=urls, access_log=False)
    return settings, catalog.configured_formats(load_formats(), settings.format_options)


def _services(kind: str, workers: int) -> tuple[Any, AnyFormat]:
    settings, formats = _settings(workers)
    sources = sources_of(settings)
    outside = SharedResources(MemoryStore(), keys=sources, tls=None, peers=None, lock=None, via=Via())
    services, _ = make_services(settings, list(formats.values()), outside)
    for entry in settings.workers:
        services.fleet.add(Worker(Address.parse(entry.url)))
    return services, formats[kind]


def _dispatch_id(kind: str, head: bytes, body: dict[str, Any]) -> str:
    if kind == "sglang":
        return str(body["rid"])
    in_head = re.search(rb"\r\nx-request-id: *(\S+)", head.lower())
    return "generate-tokens-" + (in_head[1].decode() if in_head else str(body["request_id"]))


def _named(body: dict[str, Any]) -> list[str]:
    [value] = [value for name, value in body.items() if name in ("rid", "request_ids")]
    return [value] if isinstance(value, str) else list(value)


def _message(kind: str, id: str, tokens: int, *, last: bool) -> bytes:
    if kind == "sglang":
        reason = {"type": "length", "length": tokens} if last else None
        meta = {"id": id, "finish_reason": reason, "prompt_tokens": 1, "completion_tokens": tokens}
        return json.dumps({"output_ids": [5] * tokens, "meta_info": meta}).encode()
    choice = {"index": 0, "finish_reason": "length" if last else None, "token_ids": [5]}
    return json.dumps({"request_id": id, "choices": [choice]}).encode()


def _stream(kind: str, id: str) -> Sequence[bytes]:
    """Head, a token, the last one, the end."""
    first, last = (event(_message(kind, id, tokens, last=tokens == 2)) for tokens in (1, 2))
    return STREAM_HEAD, first, last, event(b"[DONE]") + STREAM_END


def _unary(kind: str, id: str) -> Sequence[bytes]:
    """Head, half of the body, the rest."""
    head, end, body = unary_reply(_message(kind, id, 1, last=True)).partition(b"\r\n\r\n")
    return head + end, body[:20], body[20:]
