"""The one handler of every generate endpoint: the phases of an exchange, in order.

Owns: the order of things, and what a client is told when they fail. Must never enter: a dialect, HTTP
framing, the choice of a worker. The headings of docs/life-of-a-request.md are its phases.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial

from gateway.aborts import Running
from gateway.context import read_context
from gateway.downstream import AsgiClient, Client, Receive, Scope, Send, send_error
from gateway.drive import Drive, apart
from gateway.errors import (
    Cancelled,
    ConnectFailed,
    Draining,
    GatewayError,
    NotReceived,
    NoWorker,
    error_type_of,
)
from gateway.exchange import Event
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat, Headers, Ids, Reader, ReplyHead, header
from gateway.formats.headers import to_client
from gateway.run import Run, Services, public_id_line
from gateway.security.guard import Realm, challenge
from gateway.transport.http1 import Connection
from gateway.upstream import head_of

log = logging.getLogger(__name__)

HeaderLines = list[tuple[bytes, bytes]]

#: Statuses by which an engine says that it takes no more at the moment.
_BUSY = frozenset({429, 503})


class GenerateHandler:
    """One generate endpoint. ``begin`` serves our own listener; it is an ASGI application, too."""

    def __init__(self, path: str, format: AnyFormat, services: Services) -> None:
        self._path = path
        self._format: AnyFormat = format
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        drive = Drive()
        over = asyncio.get_running_loop().create_future()
        drive.start(self._exchange(AsgiClient(scope, receive, send), drive), partial(_resolve, over))
        try:
            await over
        except asyncio.CancelledError:
            drive.interrupt(Draining("the gateway is shutting down"))
            raise

    def begin(self, client: Client) -> None:
        """Start one exchange, whose request's head is there."""
        drive = Drive()
        drive.start(self._exchange(client, drive))

    async def _exchange(self, client: Client, drive: Drive) -> None:
        run = Run(client, self._format, self._path, drive, self._services)
        error: GatewayError | None = None
        try:
            await self._serve(run, client)
        except GatewayError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - the one edge: no traceback may reach a client
            log.exception("a fault of the gateway ended an exchange")
            error = GatewayError("internal error of the gateway", cause=bug)
        run.close(error)
        if error is not None and not isinstance(error, Cancelled):
            with suppress(Cancelled):  # it may leave before it is told
                await self._tell(run, error, client)

    async def _serve(self, run: Run, client: Client) -> None:
        # 1 accept
        run.enter()
        headers, guard = client.headers, self._services.guard
        if guard.armed:
            headers = guard.admit(Realm.INFERENCE, headers)
        body = await client.body(self._services.body_limit)
        run.exchange.request_bytes = len(body)
        run.watch()
        run.exchange.session = read_context(client.headers).session
        # 2 parse
        request = self._format.parse(body, headers)
        # 3 project
        projection = self._format.project(request)
        running = run.claim(self._format, request, projection, body)
        # 4 lease, 5 open
        connection, head = await self._dispatch(run, running, projection.model)
        # 6 commit, 7 feed, 8 finish; 9, release, is Run.close
        await self._relay(run, running.ids, connection, head, client)

    async def _dispatch(self, run: Run, running: Running, model: str | None) -> tuple[Connection, ReplyHead]:
        """Lease a worker and send it the request; the next one if that provably did not take it."""
        tried: list[Worker] = []
        failure: GatewayError | None = None
        while True:
            try:
                worker = run.lease(running, model, tried)
            except NoWorker as nobody:
                raise failure or nobody from None
            try:
                return await self._open(run, running, worker)
            except (ConnectFailed, NotReceived) as error:
                failure = error
            run.unlease(worker, failure)
            tried.append(worker)

    async def _open(self, run: Run, running: Running, worker: Worker) -> tuple[Connection, ReplyHead]:
        view = worker.view(self._format.name)
        request = self._format.upstream(running.request, view, running.ids)
        connection = worker.pool.take()
        if connection is None:
            connection = await apart(worker.pool.connect(), Connection.close)
        run.sending(running, connection)
        connection.send(head_of(request, worker.address), request.body)
        if running.early:
            self._services.aborter.sent(running, worker)
        head = await connection.head()
        if head.status in _BUSY:
            self._services.health.refused(worker, head.status, header(head.headers, b"retry-after"))
        run.reader = self._format.reader(running.request, view, running.ids, head)
        return connection, head

    async def _relay(
        self, run: Run, ids: Ids, connection: Connection, head: ReplyHead, client: Client
    ) -> None:
        reader, exchange = run.reader, run.exchange
        assert reader is not None
        facts, feed = reader.facts, reader.feed
        exchange.on(Event.DATA)
        exchange.reply_error = error_type_of(head.status)
        headers = _reply_headers(head, ids)
        if reader.streaming:
            await self._commit(run, head, headers, hold=connection.ready)
        while data := await self._read(connection, reader, client):
            out = feed(data)
            if facts.tokens != exchange.tokens:
                run.saw(facts.tokens)
            if out:
                if not exchange.committed:
                    await self._commit(run, head, headers + _true_length(head, reader), hold=True)
                exchange.reply_bytes += len(out)
                await client.more(out)
            elif reader.streaming:
                await client.flush()
        out = reader.finish()
        run.saw(facts.tokens)
        if not exchange.committed:
            await self._commit(run, head, headers + _own_length(head, out), hold=True)
        exchange.reply_bytes += len(out)
        await client.last(out)

    async def _commit(self, run: Run, head: ReplyHead, headers: Headers, *, hold: bool) -> None:
        run.exchange.committed = True
        run.exchange.status = head.status
        await run.client.start(head.status, headers, hold=hold)

    async def _read(self, connection: Connection, reader: Reader, client: Client) -> bytes:
        """The next bytes of the reply; meanwhile, if asked for, a comment in each silence of a stream."""
        interval = self._services.keep_alive
        if interval is not None and reader.streaming:
            while await connection.silent(interval):
                await client.more(b":\n\n")
        return await connection.read()

    async def _tell(self, run: Run, error: GatewayError, client: Client) -> None:
        """The failure in the caller's own dialect: a status before commit, in-band after it, or a cut."""
        if run.exchange.committed:
            out = run.reader.fail(error) if run.reader is not None else b""
            return await client.last(out) if out else client.cut()
        extra: HeaderLines = [(b"connection", b"close")] if isinstance(error, Draining) else challenge(error)
        if run.running is not None:
            extra += public_id_line(run.running.ids)
        elif (named := header(client.headers, b"x-request-id")) is not None:
            extra.append((b"x-request-id", named))
        await send_error(client, self._format.render(error), extra)


def _resolve(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def _reply_headers(head: ReplyHead, ids: Ids) -> HeaderLines:
    lines = to_client(head.headers)
    public = public_id_line(ids)
    return [line for line in lines if line[0] != b"x-request-id"] + public if public else lines


def _own_length(head: ReplyHead, body: bytes) -> HeaderLines:
    return [] if head.status in (204, 304) else [(b"content-length", b"%d" % len(body))]


def _true_length(head: ReplyHead, reader: Reader) -> HeaderLines:
    """The worker's own Content-Length, where the bytes that follow are exactly the worker's."""
    return [line for line in head.headers if line[0] == b"content-length"] if reader.identity else []
