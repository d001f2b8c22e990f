"""The one handler of every inference route: the phases of an exchange, in order.

Owns: the order of things, and what a client is told when they fail. Must never enter: a dialect, HTTP
framing, the choice of a worker. The headings of docs/life-of-a-request.md are its phases.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from gateway.downstream.asgi import Receive, Scope, Send
from gateway.downstream.asgi_client import AsgiClient
from gateway.downstream.client import Client
from gateway.errors import (
    Aborted,
    BodyTimeout,
    Cancelled,
    ConnectFailed,
    Draining,
    GatewayError,
    NotReceived,
    NoWorker,
    OutOfSockets,
    Overloaded,
    error_type_of,
)
from gateway.exchange import GENERATE, Event
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ids, Reader, ReplyHead, UpstreamRequest, header
from gateway.formats.headers import to_client
from gateway.formats.json.steps import STEPWISE_SIZE
from gateway.formats.optional import Stepwise
from gateway.limits import NO_TIMEOUTS, Timeouts
from gateway.loop.stepper import in_task
from gateway.proxy.aborts import Running
from gateway.proxy.context import NO_CONTEXT, read_context
from gateway.proxy.live import LiveExchange, Services, public_id_line
from gateway.security.guard import AccessScope, challenge
from gateway.upstream.connection import Connection
from gateway.upstream.encode import encode_head

log = logging.getLogger(__name__)

HeaderLines = list[tuple[bytes, bytes]]


class GenerateHandler:
    """One inference route. ``begin`` serves our own listener; it is an ASGI application, too."""

    def __init__(
        self,
        path: str,
        format: AnyFormat,
        services: Services,
        operation: str = GENERATE,
        timeouts: Timeouts = NO_TIMEOUTS,
    ) -> None:
        self._path = path
        self._operation = operation
        self._format: AnyFormat = format
        self._stepwise = format if isinstance(format, Stepwise) else None
        self._services = services
        self._timeouts = None if timeouts == NO_TIMEOUTS else timeouts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = self._run(AsgiClient(scope, receive, send))
        over = asyncio.get_running_loop().create_future()
        run.start(self._exchange(run), partial(_resolve, over))
        try:
            await over
        except asyncio.CancelledError:
            run.interrupt(Draining("the gateway is shutting down"))
            raise

    def begin(self, client: Client) -> None:
        """Start one exchange, whose request's head is there."""
        run = self._run(client)
        run.start(self._exchange(run))

    def _run(self, client: Client) -> LiveExchange:
        run = LiveExchange(client, self._format, self._path, self._services)
        run.exchange.operation = self._operation
        return run

    async def _exchange(self, run: LiveExchange) -> None:
        error: GatewayError | None = None
        try:
            await self._serve(run)
        except (Overloaded, OutOfSockets) as refusal:
            # Here and not where it is raised: by whom it is refused makes no difference to a client.
            refusal.status = self._services.overload_status
            error = refusal
        except GatewayError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - the one edge: no traceback may reach a client
            log.exception("a fault of the gateway ended an exchange")
            error = GatewayError("internal error of the gateway", cause=bug)
        try:
            run.close(error)
            if error is not None and not isinstance(error, Cancelled):
                await self._tell(run, error)
        except GatewayError:
            pass  # the client left, or its server stopped, before it was told
        except Exception:  # noqa: BLE001 - else nobody would ever answer it
            log.exception("a fault of the gateway kept it from telling how an exchange ended")
            run.client.truncate()
        _let_go(error)

    async def _serve(self, run: LiveExchange) -> None:
        client = run.client
        # 1 accept
        run.enter()
        headers, guard = client.headers, self._services.guard
        if guard.armed:
            headers = guard.admit(AccessScope.INFERENCE, headers)
        run.body = await client.read_body(self._services.body_limit)
        run.exchange.request_bytes = len(run.body)
        client.on_disconnect(run.left)
        context = read_context(client.headers)
        if context is not NO_CONTEXT:
            run.exchange.session, run.key = context.session, context.key
        if self._timeouts is not None or context.timeout is not None:
            run.limit(self._timeouts or NO_TIMEOUTS, context.timeout)
        # 2 parse
        if self._stepwise is not None and len(run.body) > STEPWISE_SIZE:
            request = await self._services.time_slices.run(self._stepwise.parse_in_steps(run.body, headers))
        else:
            request = self._format.parse(run.body, headers)
        # 3 project
        running = run.claim(request, self._format.project(request))
        request = None  # whatever holds the body is the run's to let go of
        # 4 lease, 5 open
        connection, head = await self._dispatch(run, running)
        # 6 commit, 7 feed, 8 finish; 9, release, is Run.close
        await self._relay(run, running, connection, head)

    async def _dispatch(self, run: LiveExchange, running: Running) -> tuple[Connection, ReplyHead]:
        """Lease a worker and send it the request; the next one if that provably did not take it."""
        model = run.model
        request: UpstreamRequest | None
        tried: dict[Worker, object] = {}
        failure: GatewayError | None = None
        while True:
            worker: Worker | None = None
            try:
                worker = run.lease(running, model, tried)
            except (NoWorker, Overloaded) as nobody:
                if not self._services.queue.takes(nobody):
                    raise failure or nobody from None
            if worker is None:
                # Not where the failure is caught: compiled, all that runs meanwhile would seem to handle it.
                await run.wait(model, tried)
                worker = run.lease(running, model, tried)
            # Made before there is a connection, which nobody would close if this failed.
            request = self._format.upstream(running.request, worker.view(self._format.name), running.ids)
            if run.client.query:
                request = request._replace(target=request.target + run.client.query)
            try:
                connection = worker.pool.take()
                if connection is None:
                    connection = await in_task(worker.pool.connect(), Connection.close)
                self._send(run, running, worker, connection, request)
                request = None
                return connection, await connection.head()
            except (ConnectFailed, NotReceived) as error:
                failure = error
            tried[worker] = run.unlease(worker, failure)
            if running.over:
                raise Aborted("the request was aborted")

    def _send(
        self,
        run: LiveExchange,
        running: Running,
        worker: Worker,
        connection: Connection,
        request: UpstreamRequest,
    ) -> None:
        run.sending(running, connection)
        connection.send(encode_head(request, worker.address), request.body, request.rest)
        if running.early:
            self._services.aborter.sent(running, worker)

    async def _relay(
        self, run: LiveExchange, running: Running, connection: Connection, head: ReplyHead
    ) -> None:
        client, exchange = run.client, run.exchange
        reader = run.read(running, head)
        exchange.on(Event.DATA)
        if head.status >= 400:
            exchange.reply_error = error_type_of(head.status)
        headers = _reply_headers(head, running.ids)
        if reader.streaming:
            run.commit(head, headers)
        out = await self._feed(run, reader, connection, head, headers)
        failure: GatewayError | None = None
        try:
            out += reader.finish()
        except GatewayError as error:
            failure = error
        if failure is not None:
            if out and exchange.committed:
                exchange.reply_bytes += len(out)
                await client.send(out)  # what was good of it
            raise failure
        run.saw(reader.facts.tokens)
        exchange.reply_bytes += len(out)
        if exchange.committed:
            return await client.finish(out)
        run.committed(head)
        await client.reply(head.status, headers, out)

    async def _feed(  # noqa: C901 - the loop that runs for every read; each call out of it would cost
        self, run: LiveExchange, reader: Reader, connection: Connection, head: ReplyHead, headers: HeaderLines
    ) -> bytes:
        """Pass on all there is, as it comes; if asked for, a comment in each silence of a stream.

        What the last read of the reply gave is returned: it leaves with its end, as each write costs much.
        """
        client, exchange = run.client, run.exchange
        facts, feed, streaming, watch = reader.facts, reader.feed, reader.streaming, run.watch
        # Not into bytes that nobody has looked at: they may be compressed.
        interval = self._services.sse_comment_interval if streaming and not reader.identity else None
        while True:
            while not connection.ready:
                if streaming:
                    streaming = False
                    await client.flush()
                elif interval is None and watch is None:
                    await connection.changed
                else:
                    await self._await_more(run, connection, interval)
            data = connection.take()
            if watch is not None:
                watch.came()
            if not data:
                return b""
            out = feed(data)
            if facts.tokens != exchange.tokens:
                run.saw(facts.tokens)
            if out:
                if connection.exhausted:
                    return out
                if not exchange.committed:
                    run.commit(head, headers + _true_length(head, reader))
                exchange.reply_bytes += len(out)
                await client.send(out)
            elif facts.steps is not None:
                await self._take_steps(run, reader, head, headers)

    async def _take_steps(
        self, run: LiveExchange, reader: Reader, head: ReplyHead, headers: HeaderLines
    ) -> None:
        """Do what a read left to be done, and pass on what that gives."""
        facts, exchange = reader.facts, run.exchange
        steps, facts.steps = facts.steps, None
        assert steps is not None
        while (out := await self._services.time_slices.run_step(steps)) is not None:
            run.saw(facts.tokens)
            if out:
                if not exchange.committed:
                    run.commit(head, headers + _true_length(head, reader))
                exchange.reply_bytes += len(out)
                await run.client.send(out)

    async def _await_more(self, run: LiveExchange, connection: Connection, interval: float | None) -> None:
        """Wait for more of a reply within its time, or send a comment once nothing came for ``interval``."""
        if run.watch is not None:
            run.watch.waits()
        if interval is None:
            await connection.changed
        elif await connection.stays_silent(interval):
            await run.client.send(b":\n\n")

    async def _tell(self, run: LiveExchange, error: GatewayError) -> None:
        """The failure in the caller's own dialect: a status before commit, in-band after it, or a cut."""
        client = run.client
        if run.exchange.committed:
            out = run.reader.fail(error) if run.reader is not None else b""
            return await client.finish(out) if out else client.truncate()
        extra = challenge(error)
        if run.running is not None:
            extra += public_id_line(run.running.ids)
        elif (named := header(client.headers, b"x-request-id")) is not None:
            extra.append((b"x-request-id", named))
        reply = self._format.render(error)
        close = isinstance(error, Draining | BodyTimeout)
        await client.reply(reply.status, [*reply.headers, *extra], reply.body, close=close)


def _let_go(error: BaseException | None) -> None:
    """Of the frames that an error came through: they hold the exchange, which holds the error."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _resolve(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def _reply_headers(head: ReplyHead, ids: Ids) -> HeaderLines:
    public = public_id_line(ids)
    return to_client(head.headers, own_id=bool(public)) + public


def _true_length(head: ReplyHead, reader: Reader) -> HeaderLines:
    """The worker's own Content-Length, where the bytes that follow are exactly the worker's."""
    return [line for line in head.headers if line[0] == b"content-length"] if reader.identity else []
