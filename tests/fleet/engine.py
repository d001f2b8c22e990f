"""A worker as its prober sees it: a small real HTTP server whose answers a test decides."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gateway.fleet.quotas import Quotas, WorkerQuotas
from gateway.fleet.worker import Worker
from gateway.formats.optional import WorkerHealth, WorkerLoad, health_by_status
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo
from gateway.upstream.address import Address
from gateway.upstream.connector import Connector


class EchoFormat:
    """What probing needs of a format. Its engine answers ``/info`` with its model."""

    probes: tuple[ProbeRequest, ...] = (ProbeRequest("GET", "/info"), ProbeRequest("POST", "/models", b"{}"))
    health = ProbeRequest("GET", "/health")
    details: tuple[ProbeRequest, ...] = ()
    loads = (ProbeRequest("GET", "/load"),)

    def __init__(self, name: str = "echo") -> None:
        self.name = name
        self.capability = f"{name}-generate"

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        reply = replies.get("/info")
        if reply is None or not reply.body.startswith(self.name.encode()):
            return None
        if reply.status != 200:
            return WorkerInfo(self.name, self.capability, False, reason=f"status {reply.status}")
        return WorkerInfo(self.name, self.capability, True, models=(reply.body.decode().partition(" ")[2],))

    def read_health(self, reply: ProbeReply) -> WorkerHealth:
        return WorkerHealth.BUSY if reply.status == 429 else health_by_status(reply)

    def read_load(self, question: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
        return WorkerLoad(int(reply.body), 0) if reply.status == 200 else None


Answer = tuple[int, bytes] | None
Answers = Mapping[str, Answer]
GOOD: Answers = {
    "/info": (200, b"echo m"), "/models": (200, b"[]"), "/health": (200, b""), "/load": (404, b"")
}  # fmt: skip


class Engine:
    """An HTTP server. ``answers`` maps a path to a status and a body.

    A path that is not there hangs; one that is None has its connection broken off.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.extra = b""
        self.requests: list[bytes] = []
        self.at_once = 0
        self.most_at_once = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._asked: dict[str, asyncio.Event] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def worker(self, **options: Any) -> Worker:
        return connected(Worker(Address.parse(self.url), **options))

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen; after a ``stop``, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Refuse connections from now on, and end those there are."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()

    def count(self, path: str) -> int:
        """How often ``path`` was asked for."""
        return sum(request.split(b" ", 2)[1] == path.encode() for request in self.requests)

    async def asked(self, path: str) -> None:
        """Return when ``path`` is asked for the next time."""
        event = self._asked[path] = asyncio.Event()
        await event.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            self.requests.append(head)
            if path in self._asked:
                self._asked.pop(path).set()
            if path in self.answers:
                answer = self.answers[path]
                if answer is None:
                    return writer.transport.abort()
                status, body = answer
                head = b"HTTP/1.1 %d X\r\n%bcontent-length: %d\r\n\r\n" % (status, self.extra, len(body))
                writer.write(head + body)
                await writer.drain()
            else:
                await reader.read()  # until the prober gives up
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.at_once -= 1
            self._open.discard(writer)
            if not writer.transport.is_closing():
                writer.close()


def connected(worker: Worker) -> Worker:
    """``worker`` with a pool of its own, as a fleet gives it one."""
    worker.pool, worker.quotas = Connector(5.0).pool_of(worker.address), WorkerQuotas(Quotas())
    return worker


@asynccontextmanager
async def engine(
    answers: Answers | None = None, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Engine]:
    """Run an engine with these ``answers`` beside its good ones; {}: with none."""
    made = Engine()
    made.answers = {} if answers == {} else {**GOOD, **(answers or {})}
    await made.start(tls)
    try:
        yield made
    finally:
        made.stop()
        await asyncio.sleep(0.001)
