"""A gateway without sockets: bytes go in and out by hand, so that what runs for them can be counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.downstream.connection import ClientConnection
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerEvent
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.formats.worker_contract import WorkerInfo
from gateway.settings import Settings
from gateway.upstream.connection import Connection
from gateway.upstream.read_buffer import READ_SIZE
from gateway.wiring.app import create_app
from gateway.wiring.gateway import Gateway
from tests.support.calls import calls_of


class Transport:
    """What a socket's transport does where there is no socket: nothing."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    abort = pause_reading = resume_reading = close


class Wire(Transport):
    """Stands for a socket's transport: keeps what was written. A reply that is cut is seen by its bytes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.written += parts


def begin_serving(fleet: Fleet, format: AnyFormat) -> None:
    """Make all workers ready, as workers of ``format``."""
    info = WorkerInfo(format.name, format.capability, True, models=("model",))
    for worker in fleet.workers:
        worker.infos = {format.name: info}
        fleet.apply_event(worker, WorkerEvent.SERVES)


def keep(worker: Worker, connection: Connection) -> None:
    """Give ``worker`` a connection that was used before, and stays fresh for as long as a test lasts."""
    connection.idle_since = 1e18
    worker.pool._idle.append(connection)


class Rig:
    """``workers`` workers with ``kept`` connections each, and any number of clients. Needs a running loop."""

    def __init__(self, format: str, workers: int = 2, *, kept: int = 1, access_log: bool = False) -> None:
        urls = tuple(f"http://127.0.0.1:{port}" for port in range(1, workers + 1))
        self.app = create_app(Settings(worker=urls, access_log=access_log))
        #: worker connections whose worker was not asked yet
        self._idle: dict[Connection, Wire] = {}
        self._clients: list[ClientConnection] = []
        begin_serving(self.app.fleet, load_formats()[format])
        for worker in self.app.fleet.workers:
            for _ in range(kept):
                connection, wire = Connection(bytearray(READ_SIZE), self.app.write_batch), Wire()
                connection.connection_made(cast(Any, wire))
                keep(worker, connection)
                self._idle[connection] = wire

    def client(self) -> Client:
        """One more client connection."""
        config = Config(cast(Any, self.app))
        connection, wire = ClientConnection(config, ServerState(), {}), Wire()
        connection.connection_made(cast(Any, wire))
        self._clients.append(connection)
        return Client(connection, wire, self._idle, self.app)

    def replies(self) -> list[Callable[[bytes], None]]:
        """Return a function that takes reply bytes for each worker connection that was sent a request."""
        return [partial(_receive, self.app, each) for each, wire in self._idle.items() if wire.written]

    def close(self) -> None:
        """Close all clients' connections."""
        for connection in self._clients:
            connection.connection_lost(None)


class Client:
    """A client's connection and what was written to it."""

    def __init__(
        self, connection: ClientConnection, wire: Wire, workers: dict[Connection, Wire], app: Gateway
    ) -> None:
        self._connection = connection
        self._app = app
        self._workers = workers
        self.wire = wire

    def leave(self) -> None:
        """Close the connection."""
        self._connection.connection_lost(None)

    def send(self, raw: bytes) -> None:
        self._connection.data_received(raw)
        self._app.write_batch.flush()

    def request(self, raw: bytes, *, keep: bool = True) -> Callable[[bytes], None]:
        """Send a complete request. Return a function that takes the bytes of its worker's reply.

        Without ``keep`` the worker's connection stays busy with it for good.
        """
        self.send(raw)
        [connection] = [connection for connection, wire in self._workers.items() if wire.written]
        self._workers[connection].written.clear()
        if not keep:
            del self._workers[connection]
        return partial(_receive, self._app, connection)


def _receive(app: Gateway, connection: Connection, data: bytes) -> None:
    """Have ``connection`` receive ``data`` from its worker."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    app.write_batch.flush()


async def counted(work: Callable[[], None], warm: int = 20) -> int:
    """Return how many Python and C functions ``work`` calls once it has run ``warm`` times.

    Between two runs the event loop does an iteration, as it does between reads.
    """
    for _ in range(warm):
        work()
        await asyncio.sleep(0)
    return calls_of(work)


def post(path: str, body: bytes, extra: Mapping[str, str] | None = None) -> bytes:
    """Return a request as clients of LLM engines send it."""
    headers = {
        "Host": "127.0.0.1:8000",
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": "python",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **(extra or {}),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def unary_reply(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def event(data: bytes) -> bytes:
    """Return one event of a stream, in a chunk of its own."""
    line = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(line), line)
