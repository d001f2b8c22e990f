"""A client connection: requests in, one reply for each, in the order of the requests.

Owns: pipelining, flow control, keep-alive, closing, and which requests go to a generate handler. Must never
enter: a dialect, the content of replies. uvicorn makes one for each accepted socket (its ``http`` option).

Parsing is done by ``RequestParser``, time limits by ``ClientDeadlines``, and the disconnect of a client whose
socket is not read is noticed by ``HangupPoller``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.downstream import encode
from gateway.downstream.asgi import Receive, Scope, Send, path_of, serve
from gateway.downstream.deadlines import ClientDeadlines, Phase
from gateway.downstream.hangup import HangupPoller
from gateway.downstream.head_rules import InvalidRequest, origin_form
from gateway.downstream.limits import RESERVED_CONNECTIONS, ClientLimits
from gateway.downstream.request import ServerRequest
from gateway.downstream.request_parser import RequestParser
from gateway.downstream.start_pacing import StartPacer
from gateway.errors import BodyTimeout, GatewayError, ReplyUnread, own_fault
from gateway.formats.contract import Headers
from gateway.loop.sockets import enable_tcp_keepalive
from gateway.loop.stepper import Wakeup
from gateway.loop.unreachable_peers import UnreachablePeers
from gateway.loop.write_batch import WriteBatch

#: Requests a client may pipeline before its socket is no longer read, and bytes of the body of one of them.
PIPELINE_LIMIT = 16
PIPELINED_BODY_LIMIT = 64 * 1024
#: Bytes of a reply that are written over TLS before the client has to read. asyncio's default over TLS is
#: eight times its default without.
TLS_WRITE_LIMIT = 64 * 1024
#: Seconds that a client has to read the reply that ends its connection, since it last sent something and in
#: all. Closing at once would reset the connection, and many clients then do not look for a reply.
LINGER, LONGEST_LINGER = 5.0, 30.0
#: The same for a connection that is refused because there are too many.
REFUSED_LINGER = 0.5
_TOO_SLOW: Final = "the body of the request stopped arriving, or arrives too slowly"
_RETRY: Final = [(b"retry-after", b"1")]
#: ``int in bytes`` is about ten times faster than ``bytes in bytes``.
_QUESTION: Final = ord("?")

log = logging.getLogger(__name__)

Begin = Callable[[ServerRequest], None]


class DrainState(Protocol):
    """Tells whether clients should send their next request elsewhere."""

    leaving: bool


class Application(Protocol):
    """The application behind the listener.

    ``direct_route`` returns what starts an exchange without ASGI, None for all other requests.
    ``limit_reached`` counts an exceeded limit.
    """

    start_pacer: StartPacer
    write_batch: WriteBatch
    unreachable_peers: UnreachablePeers
    limits: ClientLimits

    @property
    def lifecycle(self) -> DrainState: ...

    def limit_reached(self, limit: str) -> None: ...

    def direct_route(self, path: bytes, method: bytes) -> Begin | None: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ClientConnection(asyncio.Protocol):
    """The protocol class for uvicorn's ``http`` option; its app is a ``gateway.wiring.gateway.Gateway``."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast(Application, config.app)
        self._write_batch = self._app.write_batch
        self._state = server_state
        self._transport: asyncio.Transport
        self._tls = False
        self._over_limit = False
        self._parser = RequestParser(self, self._app.limits.head)
        self._deadlines = ClientDeadlines(self, self._parser)
        self._hangup_poller = HangupPoller(self)
        #: The request whose reply is under way.
        self._serving: ServerRequest | None = None
        self._reading_paused = False
        #: Received bytes are not parsed any more: they follow bytes that were not HTTP.
        self._discard_input = False
        self._closing = False
        self._linger_timer: asyncio.TimerHandle | None = None
        #: The client has sent bytes since the timer was set.
        self._still_sending = False
        #: True while the client does not read the bytes that were written.
        self.write_paused = False
        self._write_resumed = Wakeup()
        #: uvicorn's list of default headers, which it replaces each second, and its encoded form.
        self._default_headers: tuple[object, bytes] = (None, b"")

    # -- called by the event loop and the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._tls = transport.get_extra_info("sslcontext") is not None
        if self._tls:
            self._transport.set_write_buffer_limits(TLS_WRITE_LIMIT)
        enable_tcp_keepalive(transport)
        self._app.unreachable_peers.add(self._transport)
        limits = self._app.limits
        over = 0 if limits.connections is None else len(self._state.connections) + 1 - limits.connections
        if over > RESERVED_CONNECTIONS:
            return self._turn_away()
        self._state.connections.add(cast(Any, self))
        self._over_limit = over > 0
        self._deadlines.start(limits.over_connection_limit() if self._over_limit else limits)

    def data_received(self, data: bytes) -> None:
        if self._closing or self._discard_input:
            self._still_sending = True
            return
        try:
            self._parser.feed(data)
        except InvalidRequest as error:
            if error.limit is not None:
                self._app.limit_reached(error.limit)
            return self._reject(error.status, error.message)
        except Exception as bug:  # noqa: BLE001 - else the event loop closes the connection without a reply
            log.exception("a fault of the gateway kept it from reading a request")
            return self._fail(own_fault(bug))
        if self._serving is None:
            self._serve_next()
        else:
            self._serving.body.notify()
        if self._parser.requests:
            self._limit_pipeline()

    def eof_received(self) -> bool:
        """Treat a client that stops sending as disconnected; the unsent part of its reply is dropped."""
        if self._serving is not None:
            self._disconnect_requests()
            self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(cast(Any, self))
        self._app.unreachable_peers.remove(self._transport)
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._disconnect_requests()
        self.resume_writing()
        self._deadlines.stop()
        self._hangup_poller.stop()
        self._parser.close()

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._tls:
            self._hangup_poller.start(self._transport)

    def resume_writing(self) -> None:
        self.write_paused = False
        self._deadlines.drains += 1
        self._write_resumed.fire()
        if self._serving is None:
            self._serve_next()

    def shutdown(self) -> None:
        """Close now, or after the reply that is under way: uvicorn stops."""
        if self._serving is None:
            self._close()
        else:
            self._serving.persistent = False

    # -- called by a request (gateway.downstream.request.ReplyConnection)

    def write(self, data: bytes) -> None:
        self._write_batch.write(self._transport, data)

    def write_parts(self, parts: Sequence[bytes]) -> None:
        self._write_batch.write_parts(self._transport, parts)

    async def until_writable(self) -> None:
        while self.write_paused:
            await self._write_resumed

    def default_headers(self) -> bytes:
        headers = self._state.default_headers
        if headers is not self._default_headers[0]:
            self._default_headers = (headers, encode.lines(headers))
        cross_origin = self._app.limits.cross_origin
        if cross_origin is not None:
            asked = self._parser if self._serving is None else self._serving
            return self._default_headers[1] + cross_origin.lines(asked.headers)
        return self._default_headers[1]

    def reply_complete(self, request: ServerRequest) -> None:
        self._state.total_requests += 1
        self._serving = None
        self._deadlines.replies += 1
        if not request.persistent or self._closing:
            self._close(LONGEST_LINGER if self._parser.request is request else 0.0)
        elif self._parser.requests:
            self._serve_next()

    def close_truncated(self, *, reset: bool) -> None:
        self._serving = None
        self._write_batch.flush()
        if reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if self._tls:  # closing would send a close_notify first, as after a complete reply
                self._transport.abort()
        self._close()

    # -- called by the deadlines and the poller

    def phase(self) -> Phase:
        parser = self._parser
        if self._serving is not None:
            return Phase.BODY if parser.request is self._serving else Phase.REPLY
        if self._closing or parser.requests or (self.unsent_bytes() and not parser.in_head):
            return Phase.REPLY
        if parser.request is not None:
            return Phase.BODY  # of a request that was refused before its body was complete
        return Phase.HEAD if parser.in_head else Phase.IDLE

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def deadline_exceeded(self, phase: Phase) -> None:
        if phase is Phase.IDLE:
            self._app.limit_reached("keep_alive")
            self._close()
        elif phase is Phase.HEAD:
            self._app.limit_reached("request_head_time")
            self._refuse(408, "The head of the request did not arrive in time")
        elif phase is Phase.UNREAD:
            if self._serving is None or not self._serving.has_disconnect_callback:
                self._app.limit_reached("unread")  # else the exchange counts it when it ends
            self._disconnect_requests(ReplyUnread("the client did not read its reply"))
            self._transport.abort()
        elif self._serving is None or not self._serving.body.fail(BodyTimeout(_TOO_SLOW)):
            self._app.limit_reached("body_time")
            self._refuse(408, _TOO_SLOW.capitalize())

    def needs_hangup_poll(self) -> bool:
        unserved = self._parser.requests or self._parser.request is not None
        return bool(unserved) or (self._tls and self.write_paused)

    def on_hangup(self) -> None:
        self._disconnect_requests()
        self._transport.abort()

    # -- internals

    def _serve_next(self) -> None:
        """Serve the oldest request, unless the client does not read its replies."""
        if not self._parser.requests or self.write_paused or self._closing:
            return
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
        request = self._serving = self._parser.requests.popleft()
        if not request.target.startswith(b"/"):
            request.target = origin_form(request.target)
        path = request.target
        if _QUESTION in path:
            path = path.partition(b"?")[0]
            request.query = request.target.removeprefix(path)
        if self._over_limit:
            request.over_connection_limit, request.persistent = True, False
        begin = self._app.direct_route(path, request.method)
        if begin is None and b"%" in path:  # an escaped path is the same route (RFC 3986, section 6.2.2)
            begin = self._app.direct_route(path_of(path).encode(), request.method)
        if begin is not None:
            if self._app.lifecycle.leaving:
                request.persistent = False
            return self._app.start_pacer.start(begin, request)
        # Not gateway.loop.tasks.Tasks: uvicorn waits for the tasks of its own set when it shuts down.
        addresses = {
            "client": self._transport.get_extra_info("peername"),
            "server": self._transport.get_extra_info("sockname"),
            "scheme": "https" if self._tls else "http",
        }
        task = asyncio.get_running_loop().create_task(serve(self._app, request, addresses))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _limit_pipeline(self) -> None:
        """Stop reading while too much is pipelined; ``_serve_next`` reads on."""
        requests = self._parser.requests
        if len(requests) >= PIPELINE_LIMIT or any(
            request.body.unread > PIPELINED_BODY_LIMIT for request in requests
        ):
            self._reading_paused = True
            self._transport.pause_reading()
            self._hangup_poller.start(self._transport)

    def _turn_away(self) -> None:
        """Refuse the connection, which is over all limits, before it has sent a request."""
        limits = self._app.limits
        self._app.limit_reached("sockets")
        number = self._transport.get_extra_info("socket").fileno()  # a new file gets the lowest free one
        scarce = limits.files is not None and number >= limits.files
        self._refuse(
            limits.overload_status,
            "The gateway has reached its limit of connections",
            _RETRY,
            linger=0.0 if scarce else REFUSED_LINGER,
        )

    def _fail(self, error: GatewayError) -> None:
        """End the request that is being received, and the connection, because of ``error``."""
        serving = self._serving
        if serving is not None and self._parser.request is serving:
            self._discard_input, serving.persistent = True, False
            if serving.body.fail(error):
                return
        self._reject(error.status, error.message, _RETRY if error.retry_after else ())

    def _reject(self, status: int, message: str, headers: Headers = ()) -> None:
        """Serve the requests before the bytes at fault and close; if there was none, reply ``status``."""
        parser = self._parser
        requests, incomplete = parser.requests, parser.request
        if requests and requests[-1] is incomplete:
            requests.pop()
        last = requests[-1] if requests else self._serving
        if last is None or last is incomplete:
            return self._refuse(status, message, headers)
        self._discard_input = True
        parser.request = None
        last.persistent = False
        if self._serving is None:
            self._serve_next()
        else:
            self._serving.body.notify()

    def _refuse(
        self,
        status: int,
        message: str,
        headers: Headers = (),
        *,
        linger: float = LONGEST_LINGER,
    ) -> None:
        """Reply ``status`` if no reply was begun, and close."""
        incomplete = self._parser.request
        if incomplete is None or not incomplete.started:
            lines, body = encode.failure(status, message)
            more = encode.lines(list(headers)) + self.default_headers() + encode.CLOSE
            self.write(encode.complete_reply(status, lines, more, body))
        self._close(linger)
        self._disconnect_requests()

    def _disconnect_requests(self, reason: GatewayError | None = None) -> None:
        """End all requests: the client disconnected, or the gateway gave it up for ``reason``."""
        self._closing = True
        for request in (self._serving, self._parser.request, *self._parser.requests):
            if request is not None:
                request.disconnect(reason)
        self._parser.requests.clear()

    def _close(self, linger: float = 0.0) -> None:
        """Close once all is written. First read and drop input for up to ``linger`` seconds (see LINGER)."""
        self._closing = True
        self._write_batch.flush()
        if not linger or self._transport.is_closing():
            return self._transport.close()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if self._linger_timer is None:
            self._linger(linger)

    def _linger(self, longest: float) -> None:
        """Close after LINGER seconds in which the client sent nothing, or after ``longest``."""
        self._still_sending = False
        pause = min(LINGER, longest)
        self._linger_timer = asyncio.get_running_loop().call_later(pause, self._end_linger, longest - pause)

    def _end_linger(self, longest: float) -> None:
        if self._still_sending and longest > 0:
            self._linger(longest)
        else:
            self._transport.close()
