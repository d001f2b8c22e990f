"""One client connection: requests in, each answered in its turn.

Owns: parsing, keep-alive, pipelining, flow control, and which calls go to a generate handler. Must never
enter: a dialect, the content of replies. uvicorn makes one for each accepted socket (its ``http`` option).

One class, as all of it is one state that each byte may change: to share it among objects would cost every
request calls, and its reader the certainty of who changes what.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.downstream import encode
from gateway.downstream.asgi import Receive, Scope, Send, path_of, serve
from gateway.downstream.head_rules import (
    EXCESSES,
    Excess,
    Refused,
    check_coding,
    check_excess,
    check_version,
    framing,
    origin_form,
)
from gateway.downstream.limits import RESERVED_CONNECTIONS, ClientLimits, Patience, Phase
from gateway.downstream.request import ServerRequest
from gateway.downstream.start_pacing import StartPacer
from gateway.errors import GatewayError, ReplyUnread
from gateway.loop.sockets import enable_tcp_keepalive
from gateway.loop.stepper import Wakeup
from gateway.loop.write_batch import WriteBatch

#: Requests that a client may have sent ahead of its replies before its socket is no longer read.
PIPELINE_LIMIT = 16
#: And bytes of the body of such a request.
AHEAD_LIMIT = 64 * 1024
#: Bytes of a reply that the client does not take before no more is written, over TLS.
WRITE_LIMIT = 64 * 1024
#: So many bytes of a reply are a step that a client has to take within its time to read.
TAKEN_STEP = 16 * 1024
#: How often a client whose socket is not read is looked at, in seconds.
HANGUP_INTERVAL = 0.1
#: How long a client that is still sending may take to find the reply that ends its connection, in seconds.
#: What is closed under it is reset, and then many look for no reply.
LINGER = 5.0
#: A number, as to look for it in bytes takes a tenth of what looking for a bytes of one takes.
_QUESTION: Final = ord("?")

Begin = Callable[[ServerRequest], None]


class Leaving(Protocol):
    """Whether clients had better go elsewhere with their next request."""

    leaving: bool


class Application(Protocol):
    """The application behind the listener.

    ``direct_route`` returns what starts an exchange without ASGI, None for all other requests. ``hit``
    counts a limit that a client exceeded.
    """

    start_pacer: StartPacer
    write_batch: WriteBatch
    limits: ClientLimits

    @property
    def lifecycle(self) -> Leaving: ...

    def hit(self, limit: str) -> None: ...

    def direct_route(self, path: bytes, method: bytes) -> Begin | None: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ClientConnection(asyncio.Protocol):
    """The protocol class for uvicorn's ``http`` option; its app must be a ``gateway.wiring.app.Gateway``."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast(Application, config.app)
        self._direct_of = self._app.direct_route
        self._write_batch = self._app.write_batch
        self._state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._limits = self._app.limits
        self._most_bytes, self._most_lines = self._limits.head
        #: More clients are here than there should be: only what needs no worker is answered.
        self._crowded = False
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._tls = False
        #: Bytes in a row that are no part of a body: a head, chunk extensions, trailers.
        self._barren = 0
        self._in_head = False
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._reading: ServerRequest | None = None
        self._serving: ServerRequest | None = None
        self._fresh: ServerRequest | None = None
        self._ahead: deque[ServerRequest] = deque()
        self._closing = False
        self._room = Wakeup()
        #: The client does not take what was written (gateway.downstream.request.ServerWire).
        self.write_paused = False
        #: What comes is not HTTP any more; it is not looked at.
        self._deaf = False
        #: Changes with all that a client does in time, but for sending bodies and reading replies.
        self._progress = 0
        #: Bytes of bodies that came, and how often what was written had to be waited for, and was taken.
        self._came = 0
        self._taken = 0
        self._patience: Patience
        self._unread: Patience | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._hangup_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._common_of: list[tuple[bytes, bytes]] | None = None
        self._common = b""

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._tls = transport.get_extra_info("sslcontext") is not None
        if self._tls:  # else it is eight times that of a plain one
            self._transport.set_write_buffer_limits(WRITE_LIMIT)
        self._state.connections.add(cast(Any, self))
        enable_tcp_keepalive(transport)
        if not self._admitted():
            return
        self._patience = Patience(self._limits, self._loop.time())
        self._look_timer = self._loop.call_later(self._limits.interval, self._look)

    def data_received(self, data: bytes) -> None:
        if self._closing or self._deaf:
            return
        self._barren += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            return self._unreadable(error.__context__)
        if self._barren > self._most_bytes:
            return self._overdone("size")
        self._go_on()

    def eof_received(self) -> bool:
        """A client that stops sending has left. What is unsent of its reply may never be taken: drop it."""
        if self._serving is not None:
            self._lose_calls()
            self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(cast(Any, self))
        for timer in (self._look_timer, self._hangup_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        self._lose_calls()
        self.resume_writing()
        self._parser = None  # which holds this connection as well

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._tls:
            self._watch_for_hangup()  # the loop flushes what is unsent before it tells of a bare FIN

    def resume_writing(self) -> None:
        self.write_paused = False
        self._taken += 1
        self._room.fire()
        self._serve_next()

    def shutdown(self) -> None:
        """uvicorn stops: close now, or after the reply that is under way."""
        if self._serving is None:
            self._close()
        else:
            self._serving.persistent = False

    # -- what the parser calls

    def on_message_begin(self) -> None:
        self._in_head = True
        self._progress += 1
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is None:  # trailers are nobody's headers
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._reading is not None:
            return  # the head that stands in for that of a request with an offer
        if len(self._headers) > self._most_lines or self._barren > self._most_bytes:
            check_excess(self._target, self._headers, self._limits.head)
        parser = self._parser
        version = parser.get_http_version()
        http11 = version == "1.1"
        call = ServerRequest(self, parser.get_method(), self._target, self._headers, http11)
        call.persistent = parser.should_keep_alive()
        hosts = 0
        for name, value in self._headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                call.body.content_length = int(value)
            elif name == b"expect":
                call.body.expects_continue = http11 and value.lower() == b"100-continue"
            elif name == b"transfer-encoding":
                check_coding(value, http11)
        if hosts != 1 or not http11:
            check_version(version, hosts)
        self._reading = call
        self._barren = 0
        if self._serving is None:
            self._serving = self._fresh = call
        else:
            self._line_up(call)

    def on_body(self, body: bytes) -> None:
        self._barren = 0
        self._came += len(body)
        call = self._reading
        if call is None or call.replied:
            return
        call.body.append(body)
        if call is not self._serving and call.body.unread > AHEAD_LIMIT:
            self._pause()  # its turn has not come

    def on_message_complete(self) -> None:
        self._barren = 0
        call = self._reading
        if call is None:
            return
        if self._parser.should_upgrade() and framing(call.headers):
            return  # its body is still to come
        call.body.complete = True
        self._reading = None

    # -- what a call asks (gateway.downstream.request.ServerWire)

    def write(self, data: bytes) -> None:
        self._write_batch.write(self._transport, data)

    def write_parts(self, parts: Sequence[bytes]) -> None:
        self._write_batch.write_parts(self._transport, parts)

    async def drain(self) -> None:
        while self.write_paused:
            await self._room

    def default_headers(self) -> bytes:
        headers = self._state.default_headers
        if headers is not self._common_of:
            self._common_of, self._common = headers, encode.lines(headers)
        return self._common

    def reply_complete(self, call: ServerRequest) -> None:
        self._state.total_requests += 1
        self._serving = None
        self._progress += 1
        if not call.persistent or self._closing:
            self._close(sends=self._reading is call)
        else:
            self._serve_next()

    def close_truncated(self, *, reset: bool) -> None:
        self._serving = None
        self._write_batch.flush()
        if reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if self._tls:  # to close would say goodbye first, as after a whole reply
                self._transport.abort()
        self._close()

    # -- internals

    def _parse(self, data: bytes | memoryview) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = memoryview(data)[offer.args[0] :]
            # No other protocol is spoken here: the request is served as if it had not asked. The parser takes
            # its body for the other protocol, so a new one reads on behind a head that makes no offer.
            self._parser = httptools.HttpRequestParser(self)
            if self._reading is not None:
                lines = encode.lines(framing(self._reading.headers))
                self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)
            if not data:
                return

    def _line_up(self, call: ServerRequest) -> None:
        self._ahead.append(call)
        if len(self._ahead) >= PIPELINE_LIMIT:
            self._pause()

    def _unreadable(self, why: BaseException | None) -> None:
        if isinstance(why, Excess):
            return self._overdone(str(why))
        reason = f": {why}" if isinstance(why, Refused) else ""
        self._stop(400, f"Invalid HTTP request{reason}")

    def _overdone(self, excess: str) -> None:
        self._app.hit(f"request_head_{excess}")
        self._stop(431, EXCESSES[excess])

    def _stop(self, status: int, message: str) -> None:
        """What comes now is no request. Those that were whole before are served, and then it is over."""
        last = self._serving
        if last is None or last is self._reading:
            return self._refuse(status, message, sends=True)
        self._deaf = True
        if self._ahead and self._ahead[-1] is self._reading:
            self._ahead.pop()
        self._reading = None
        if self._ahead:
            last = self._ahead[-1]
        last.persistent = False
        self._go_on()

    def _lose_calls(self, why: GatewayError | None = None) -> None:
        """The client is gone, or given up: then ``why``."""
        self._closing = True
        for call in (self._serving, self._reading, *self._ahead):
            if call is not None:
                call.disconnect(why)
        self._ahead.clear()

    def _pause(self) -> None:
        """Read no more until a turn comes; a socket that is not read does not tell of a leaving, so look."""
        self._transport.pause_reading()
        self._watch_for_hangup()

    def _watch_for_hangup(self) -> None:
        if self._hangup_timer is None:
            self._hangup_timer = self._loop.call_later(HANGUP_INTERVAL, self._look_if_left)

    def _look_if_left(self) -> None:
        self._hangup_timer = None
        sock = self._transport.get_extra_info("socket")
        if self._transport.is_closing() or sock is None or sock.fileno() < 0:
            return
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        if poll.poll(0):
            self._lose_calls()
            self._transport.abort()
        elif self._ahead or self._reading is not None or (self._tls and self.write_paused):
            self._hangup_timer = self._loop.call_later(HANGUP_INTERVAL, self._look_if_left)

    def _serve_next(self) -> None:
        """Serve what was sent ahead, once the client takes what it was sent."""
        if self._ahead and self._serving is None and not self.write_paused and not self._closing:
            self._transport.resume_reading()
            self._serve(self._ahead.popleft())

    def _go_on(self) -> None:
        """All that came is parsed: serve what is new, and tell what is being served."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            self._serve(fresh)
        elif self._serving is not None:
            self._serving.body.notify()

    def _serve(self, call: ServerRequest) -> None:
        self._serving = call
        if not call.target.startswith(b"/"):
            call.target = origin_form(call.target)
        path = call.target
        if _QUESTION in path:
            path = path.partition(b"?")[0]
            call.query = call.target.removeprefix(path)
        if self._crowded:
            call.over_connection_limit, call.persistent = True, False
        begin = self._direct_of(path, call.method)
        if begin is None and b"%" in path:  # it is the same route, however it is spelled
            begin = self._direct_of(path_of(path).encode(), call.method)
        if begin is not None:
            if self._app.lifecycle.leaving:
                call.persistent = False
            return self._app.start_pacer.start(begin, call)
        # Not gateway.loop.tasks.Tasks: uvicorn waits for the tasks of its own set when it shuts down.
        addresses = {
            "client": self._transport.get_extra_info("peername"),
            "server": self._transport.get_extra_info("sockname"),
            "scheme": "https" if self._tls else "http",
        }
        task = self._loop.create_task(serve(self._app, call, addresses))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _refuse(self, status: int, message: str, *lines: tuple[bytes, bytes], sends: bool = False) -> None:
        """The bytes are no request: say so if they have no reply, not even half of one, and hang up."""
        if self._reading is None or not self._reading.started:
            headers, body = encode.failure(status, message)
            more = encode.lines(lines) + self.default_headers() + encode.CLOSE
            self.write(encode.complete_reply(status, headers, more, body))
        self._close(sends=sends)
        self._lose_calls()

    def _close(self, *, sends: bool = False) -> None:
        """``sends``: the client is not known to have sent all it wants to; what comes is dropped."""
        self._closing = True
        self._write_batch.flush()
        if not sends or self._transport.is_closing():
            return self._transport.close()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._linger_timer = self._loop.call_later(LINGER, self._transport.close)

    def _admitted(self) -> bool:
        """Whether there is room for this connection, if only for a route that needs no worker."""
        most = self._limits.connections
        over = 0 if most is None else len(self._state.connections) - most
        if over > RESERVED_CONNECTIONS:
            self._app.hit("sockets")
            message = "The gateway has as many connections as it takes"
            self._refuse(self._limits.overload_status, message, (b"retry-after", b"1"))
            return False
        if over > 0:
            self._crowded, self._limits = True, self._limits.crowded()
        return True

    def _phase(self) -> Phase:
        """What is waited for."""
        if self._serving is not None:
            return Phase.BODY if self._reading is self._serving else Phase.SERVED
        if self._ahead or (self._transport.get_write_buffer_size() and not self._in_head):
            return Phase.SERVED  # its reply is still on its way
        if self._reading is not None:
            return Phase.BODY  # the rest of one that was refused
        return Phase.HEAD if self._in_head else Phase.IDLE

    def _look(self) -> None:
        """Part with a client whose time is up; one timer per connection, not per request."""
        now = self._loop.time()
        self._look_timer = self._loop.call_later(self._limits.interval, self._look)
        if self._leaves_unread(now):
            return self._give_up()
        phase = self._phase()
        progress = (self._progress, self._came // self._limits.body_step)
        if self._closing or not self._patience.spent(phase, progress, now):
            return
        if phase is Phase.IDLE:
            self._app.hit("keep_alive")
            self._close()
        elif phase is Phase.HEAD:
            self._app.hit("request_head_time")
            self._refuse(408, "The head of the request did not come in time", sends=True)
        elif self._serving is None or not self._serving.body.time_out():
            self._app.hit("body_time")
            self._refuse(408, "The body of the request stopped arriving, or arrives too slowly", sends=True)

    def _leaves_unread(self, now: float) -> bool:
        """Whether the client has taken next to nothing of what was written for as long as it may."""
        size = self._transport.get_write_buffer_size()
        if not size:
            self._unread = None
            return False
        if self._unread is None:
            self._unread = Patience(self._limits, now)
        return self._unread.spent(Phase.UNREAD, (self._taken, size // TAKEN_STEP), now)

    def _give_up(self) -> None:
        """The client does not read: what is left of its reply goes with the connection, as if it had left."""
        if self._serving is None or not self._serving.has_disconnect_callback:
            self._app.hit("unread")  # no exchange ends with it
        self._lose_calls(ReplyUnread("the client did not read its reply"))
        self._transport.abort()
