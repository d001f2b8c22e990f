"""The one handler of every inference route: the phases of an exchange, in order.

Owns: the order of the phases, and what a client is sent when one of them fails. Must never enter: a dialect,
HTTP framing, the choice of a worker. The headings of docs/life-of-a-request.md are its phases.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from gateway.downstream.asgi import Receive, Scope, Send
from gateway.downstream.asgi_client import AsgiClient
from gateway.downstream.client import Client
from gateway.errors import (
    BodyTimeout,
    Cancelled,
    Draining,
    GatewayError,
    LoopDetected,
    OutOfSockets,
    Overloaded,
    drop_tracebacks,
    error_type_of,
    own_fault,
)
from gateway.exchange import DATA, GENERATE
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending, header
from gateway.formats.headers import to_client
from gateway.formats.json.steps import STEPWISE_SIZE
from gateway.formats.optional import Stepwise
from gateway.limits import NO_TIMEOUTS, Timeouts
from gateway.proxy.attempt import BUSY_STATUSES
from gateway.proxy.content_coding import decode, without_coding
from gateway.proxy.context import NO_CONTEXT, read_context
from gateway.proxy.dispatch import dispatch
from gateway.proxy.feed import feed
from gateway.proxy.live import LiveExchange
from gateway.proxy.services import Services
from gateway.security.guard import AccessScope, challenge
from gateway.upstream.via import LOOPED

log = logging.getLogger(__name__)

_INCOMPLETE = Ending.INCOMPLETE


class GenerateHandler:
    """The handler of one inference route.

    ``begin`` serves the gateway's own listener. The handler is an ASGI application, too.
    """

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
        client = AsgiClient(scope, receive, send)
        live = LiveExchange(client, self._format, self._path, self._operation, self._services)
        ended = asyncio.get_running_loop().create_future()
        live.stepper.start(self._exchange(live), partial(_resolve, ended))
        try:
            await ended
        except asyncio.CancelledError:
            live.interrupt(Draining("the gateway is shutting down"))
            raise

    def begin(self, client: Client) -> None:
        """Start one exchange, the head of whose request has arrived."""
        live = LiveExchange(client, self._format, self._path, self._operation, self._services)
        live.stepper.start(self._exchange(live))

    async def _exchange(self, live: LiveExchange) -> None:
        error: GatewayError | None = None
        try:
            await self._serve(live)
        except (Overloaded, OutOfSockets) as refusal:
            # Set here, not where it is raised: to a client it makes no difference which part refused.
            refusal.status = self._services.overload_status
            error = refusal
        except GatewayError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - the outermost catch: no traceback may reach a client
            log.exception("a fault of the gateway ended an exchange")
            error = own_fault(bug)
        try:
            live.close(error)
            if error is not None and not isinstance(error, Cancelled):
                await self._send_error(live, error)
        except GatewayError:
            pass  # the client disconnected, or its server stopped, before the error was sent
        except Exception:  # noqa: BLE001 - else nobody would ever end the client's request
            log.exception("a fault of the gateway kept it from reporting how an exchange ended")
            live.client.truncate()
        # An engine whose inner process died may still send an error reply about its own crash.
        if live.record.ending is _INCOMPLETE or live.record.reply_error == "internal":
            await live.report_broken_reply()
        drop_tracebacks(error)

    async def _serve(self, live: LiveExchange) -> None:
        services, client, record = self._services, live.client, live.record
        # 1 accept
        if client.over_connection_limit:
            raise OutOfSockets("the gateway has reached its limit of connections; please try again")
        services.lifecycle.enter(live)
        headers = client.headers
        if services.guard.armed:
            headers = services.guard.admit(AccessScope.INFERENCE, headers)
        context = read_context(client.headers)
        if context.forwarded and services.via.passed(client.headers):
            raise LoopDetected(LOOPED)
        live.body = await client.read_body(services.body_limit)
        record.request_bytes = len(live.body)
        client.on_disconnect(live.on_client_disconnect)
        if context is not NO_CONTEXT:
            record.session, live.routing_key = context.session, context.key
        if self._timeouts is not None or context.timeout is not None:
            live.start_deadlines(self._timeouts or NO_TIMEOUTS, context.timeout)
        if context.coding is not None and self._operation == GENERATE:
            live.body = await services.time_slices.run(decode(live.body, context.coding, services.body_limit))
            record.request_bytes, headers = len(live.body), without_coding(headers)
        # 2 parse
        if self._stepwise is not None and len(live.body) > STEPWISE_SIZE:
            live.request = await services.time_slices.run(self._stepwise.parse_in_steps(live.body, headers))
        else:
            live.request = self._format.parse(live.body, headers)
        # 3 project
        live.projection = self._format.project(live.request)
        if services.query_of_death.armed:
            services.query_of_death.check(await live.digest_body(), time.monotonic())
        live.claim_ids()
        # 4 lease, 5 open
        await dispatch(live)
        # 6 commit, 7 feed, 8 finish; 9, release, is LiveExchange.close
        await self._relay(live)

    async def _relay(self, live: LiveExchange) -> None:
        """Pass the worker's reply to the client."""
        client, record, attempt = live.client, live.record, live.attempt
        assert attempt is not None, "a reply needs an attempt"
        head, worker = attempt.head, attempt.worker
        if head.status in BUSY_STATUSES:
            self._services.health.report_busy(worker, head.status, header(head.headers, b"retry-after"))
        reader = self._format.reader(live.request, worker.view(self._format.name), live.ids, head)
        attempt.reader = reader
        record.apply(DATA)
        if head.status >= 400:
            record.reply_error = error_type_of(head.status)
        public_id = live.public_id_line()
        attempt.reply_headers = to_client(head.headers, own_id=bool(public_id)) + public_id
        # commit (6)
        if reader.streaming:
            live.commit(head.status, attempt.reply_headers)
        # feed (7)
        out = await feed(live)
        # finish (8)
        failure: GatewayError | None = None
        try:
            out += reader.finish()
        except GatewayError as error:
            failure = error
        if failure is not None:
            if out and record.committed:
                record.reply_bytes += len(out)
                await client.send(out)  # the part that is valid
            raise failure
        live.update_tokens(reader.facts.tokens)
        record.reply_bytes += len(out)
        if record.committed:
            return await client.finish(out)
        record.committed, record.status = True, head.status
        await client.reply(head.status, attempt.reply_headers, out)

    async def _send_error(self, live: LiveExchange, error: GatewayError) -> None:
        """Send the failure in the dialect: before commit as a status, after it in-band or by a cut."""
        client, attempt = live.client, live.attempt
        if live.record.committed:
            assert attempt is not None, "only its reply is committed"
            out = attempt.reader.fail(error)
            complete = attempt.reader.facts.ending is not None
            return await client.finish(out) if out or complete else client.truncate()
        extra = challenge(error)
        if live.ids.public:
            extra += live.public_id_line()
        elif (named := header(client.headers, b"x-request-id")) is not None:
            extra.append((b"x-request-id", named))
        reply = self._format.render(error)
        close = isinstance(error, Draining | BodyTimeout)
        await client.reply(reply.status, [*reply.headers, *extra], reply.body, close=close)


def _resolve(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
