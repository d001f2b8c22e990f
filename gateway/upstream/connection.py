"""One HTTP/1.1 client connection to a worker, on asyncio and httptools.

Owns: framing, back-pressure and the honest end of a reply. Must never enter: a dialect, choice of a worker,
retries. Source of the rules: RFC 9112.

One class, as the end of a reply depends on all that the parser, the socket and the reader have told so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import httptools

from gateway.errors import NotReceived, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Headers, ReplyHead
from gateway.limits import DEFAULT_HEAD, HeadLimits
from gateway.loop.sockets import enable_tcp_keepalive
from gateway.loop.stepper import Wakeup
from gateway.loop.write_batch import WriteBatch
from gateway.upstream.tcp_info import TcpInfo, tcp_info

#: Bytes of a reply held for a reader that has not come for them before the socket is no longer read.
HIGH_WATER = 32 * 1024
#: Bytes taken from a socket at once in the middle of something long, and usually: to take small events apart
#: takes several times the room of the read they came in. What is read is parsed before anything else happens,
#: so that all connections of an event loop share one buffer, of the larger size.
READ_SIZE: Final = 128 * 1024
USUAL_READ: Final = 32 * 1024
#: After so many large reads the loop has its turn.
MOST_IN_A_ROW: Final = 8
#: Bytes of a long request that are encrypted at once.
SLICE: Final = 256 * 1024
#: How long the TCP of a peer that closed may take to refuse what it was sent, in seconds: a few round trips.
REFUSAL_WAIT = 0.25

_TOO_LARGE = "the head of the worker's reply is over the size limit"
_TOO_MANY = "the head of the worker's reply has more lines than the limit"


class Connection(asyncio.BufferedProtocol):
    """One connection, used for one exchange at a time: ``send``, then ``head``, then ``read`` until b"".

    ``take`` is ``read`` for who has seen that it is ``ready``, and ``changed`` what to wait for till then.
    All three raise UpstreamIncomplete when the connection ends early and UpstreamMalformed when
    the bytes are not HTTP/1.1; ``head`` raises NotReceived when the worker provably never had the request.
    """

    def __init__(
        self, scratch: bytearray, write_batch: WriteBatch | None = None, head: HeadLimits = DEFAULT_HEAD
    ) -> None:
        self._write_batch = write_batch or WriteBatch()
        self._wide = memoryview(scratch)
        self._usual = self._scratch = self._wide[:USUAL_READ]
        #: A head over this is taken as nonsense; and so is as much in a row that is no part of a body
        #: (trailers, chunk extensions, interim replies).
        self._most_bytes, self._most_lines = head.size, head.lines
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        #: Fired by whatever the connection learns.
        self.changed = Wakeup()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._loop = asyncio.get_running_loop()
        self._error: UpstreamIncomplete | UpstreamMalformed | None = None
        self._sent_before = 0
        self._encrypted = self._full = False
        self._paused = False
        self._silent = False
        self.closed = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        #: Whether ``take`` can tell something: bytes, the end, or what went wrong.
        self.ready = False
        self._head: ReplyHead | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._barren = 0
        self._chunks: list[bytes] = []
        self._held = 0
        self._in_a_row = 0
        self._complete = False
        self._reusable = False
        self._until_close = False
        self._awaiting = False
        self._answered = False
        self._peer_left = False
        self._sent = 0
        self._unsent: Iterator[memoryview] | None = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self._awaiting else "idle"
        return f"<Connection {state} held={self._held}>"

    @property
    def usable(self) -> bool:
        """False once it is known to be over, whoever ended it."""
        return not self.closed and not self._transport.is_closing()

    @property
    def exhausted(self) -> bool:
        """The reply is whole, and all of it was taken."""
        return self._complete and not self._chunks

    @property
    def reached_worker(self) -> bool:
        """Whether the worker's TCP took some of the request that was sent, so that no failure of this
        connection can be NotReceived any more."""
        if self._answered:
            return True
        info = tcp_info(self._transport)
        return info is None or self._reached(info)

    # -- what the handler calls

    def send(self, head: bytes, body: bytes, rest: Sequence[bytes | memoryview] = ()) -> None:
        """Write one request. ``head`` ends with its blank line, ``rest`` is the end of the body in pieces."""
        self._awaiting = True
        self._sent = len(head) + len(body)
        if rest:
            self._sent += sum(map(len, rest))
        if not self.usable:
            self._fail(NotReceived("the worker closed the connection before anything was sent"))
        elif len(body) < 65536 and not rest:
            self._write_batch.write(self._transport, head + body)
        elif self._encrypted:
            self._write_batch.flush()
            self._unsent = _slices((head, body, *rest))
            self._send_more()
        else:
            self._write_batch.write_parts(self._transport, (head, body, *rest))

    async def stays_silent(self, seconds: float) -> bool:
        """True if it is not ``ready`` for ``seconds``; False, as soon as it is."""
        self._silent = False
        timer = self._loop.call_later(seconds, self._silence)
        try:
            while not self.ready and not self._silent:
                await self.changed  # half a chunk's size fires it, too
        finally:
            timer.cancel()
        return not self.ready

    async def head(self) -> ReplyHead:
        """Wait for the final response's status and headers; interim responses are skipped."""
        while self._head is None:
            if self._error is not None:
                raise self._error
            await (self._settle() if self._peer_left else self.changed)
        return self._head

    async def read(self) -> bytes:
        """All body bytes that came since the last call, at least one; b"" when the reply is whole."""
        while not self.ready:
            await self.changed
        return self.take()

    def take(self) -> bytes:
        """``read``, where it is ``ready``."""
        chunks = self._chunks
        if not chunks:
            if self._error is not None and not self._complete:
                raise self._error
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._held = 0
        self.ready = self._complete or self._error is not None
        if self._paused and not self.closed:
            self._paused = False
            self._transport.resume_reading()
        return data

    def recycle(self) -> bool:
        """Make ready for another request. False: the connection cannot carry one and was closed."""
        if not (self._complete and self._reusable and self.usable):
            self.close()
            return False
        if self._chunks or self._unsent is not None or self._transport.get_write_buffer_size():
            self.close()
            return False
        sent = self._sent
        self._reset()
        self._sent_before += sent
        return True

    def close(self) -> None:
        """Close at once; what was not sent yet is dropped."""
        if not self.closed:
            self.closed = True
            self._transport.abort()

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "abort")
        self._transport = transport  # type: ignore[assignment]
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        if self._encrypted:
            # What is held in its encrypted form counts as well, and by default is eight times this.
            cast(Any, transport).set_read_buffer_limits(HIGH_WATER)
        enable_tcp_keepalive(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if not self._awaiting or self._complete:
            # Bytes that nobody asked for: what follows could be taken for the next reply.
            return self.close()
        self._answered = True
        self._barren += nbytes
        try:
            self._parser.feed_data(self._scratch[:nbytes])
        except httptools.HttpParserUpgrade:
            self._break(UpstreamMalformed("the worker switched protocols"))
        except httptools.HttpParserError as error:
            self._break(UpstreamMalformed("the worker's reply is not HTTP/1.1", cause=error))
        if self._barren > self._most_bytes:
            self._break(UpstreamMalformed(_TOO_LARGE, limit="reply_head"))
        if nbytes >= USUAL_READ:
            self._scratch = self._wide if self._inside(nbytes) else self._usual
        self.changed.fire()
        if self.closed or self._paused:
            return
        if self._held > HIGH_WATER:
            self._paused = True
            self._transport.pause_reading()
        elif nbytes == len(self._wide):
            # There is more, and the loop would read on and on before anything else has its turn. Not after
            # each read: what is long is dealt with for less while it is in the processor's caches.
            self._in_a_row += 1
            if self._in_a_row == MOST_IN_A_ROW:
                self._in_a_row = 0
                self._transport.pause_reading()
                self._loop.call_soon(self._read_on)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._send_more()

    def eof_received(self) -> bool:
        """The peer will send no more. True keeps the socket open, to learn what became of the request."""
        self._peer_left = True
        if self._head is not None and self._until_close:
            self._complete = self.ready = True
        elif self._awaiting and not self._answered and tcp_info(self._transport) is not None:
            self.changed.fire()
            return True
        self._lost(None)
        # What is still to be sent has no reader: to flush it first could take for ever.
        self.close()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._lost(exc)
        self._parser = None  # which holds this connection as well

    # -- what the parser calls

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("more bytes than one reply")  # stops the parser; the connection is closed
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:
            self._headers.append((name.lower(), value.strip(b" ")))

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if 100 <= status < 200:
            if status == 101:
                self._refuse("the worker switched protocols")
            return
        if not 200 <= status <= 599:
            self._refuse("the worker's status code is not one of HTTP's")
        if self._barren > self._most_bytes and _size(self._headers) > self._most_bytes:
            self._refuse(_TOO_LARGE, limit="reply_head")
        if len(self._headers) > self._most_lines:
            self._refuse(_TOO_MANY, limit="reply_head")
        sized = _sized(self._headers)
        if sized is None:
            self._refuse("the worker's reply has an unknown transfer coding")
        self._until_close = not sized
        self._barren = 0
        self._head = ReplyHead(status, self._headers)

    def on_body(self, body: bytes) -> None:
        self._barren = 0
        self._chunks.append(body)
        self._held += len(body)
        self.ready = True

    def on_message_complete(self) -> None:
        if self._head is not None:
            self._complete = self.ready = True
            self._reusable = self._parser.should_keep_alive()

    # -- internals

    def _send_more(self) -> None:
        """Write the next slice of a long request, and the one after it in another turn of the loop: what is
        written is encrypted at once."""
        if self._unsent is None or self.closed or self._full:
            return
        part = next(self._unsent, None)
        if part is None:
            self._unsent = None
            return
        self._transport.write(part)
        if not self._full:
            self._loop.call_soon(self._send_more)

    def _read_on(self) -> None:
        if not self._paused and not self.closed:
            self._transport.resume_reading()

    def _inside(self, nbytes: int) -> bool:
        """Whether all of a read of ``nbytes`` was one piece of a body, and of one line in it."""
        chunks = self._chunks
        return bool(chunks) and len(chunks[-1]) == nbytes and chunks[-1].find(b"\n") < 0

    def _silence(self) -> None:
        self._silent = True
        self.changed.fire()

    def _fail(self, error: UpstreamIncomplete | UpstreamMalformed) -> None:
        self._error = error
        self.ready = True

    def _refuse(self, message: str, limit: str | None = None) -> None:
        """Break off, out of the parser: it would take what follows in the same read for the reply."""
        self._break(UpstreamMalformed(message, limit=limit))
        raise ValueError(message)

    def _break(self, error: UpstreamMalformed) -> None:
        if self._error is None:
            self._fail(error)
        self.close()

    def _lost(self, exc: Exception | None) -> None:
        if self._awaiting and not self._complete and self._error is None:
            if self._refused():
                self._fail(NotReceived("the worker closed the connection before it took the request"))
            else:
                self._fail(UpstreamIncomplete("the worker's reply broke off", cause=exc))
        self.changed.fire()

    async def _settle(self) -> None:
        """The peer closed before any answer: wait until its TCP tells what became of the request."""
        deadline = self._loop.time() + REFUSAL_WAIT
        while self._error is None:
            info = tcp_info(self._transport)
            if info is None or info.reset or self._reached(info) or self._loop.time() > deadline:
                self._lost(None)
                return self.close()
            await asyncio.sleep(0.002)

    def _refused(self) -> bool:
        """True only if no byte of this request can have reached the worker.

        Three things prove it. The peer had closed (a reset alone may hide a request that was read and not yet
        acknowledged). It acknowledged none of our bytes. And its TCP refused them with a reset, as it does
        when there is no reader left (a peer that closed only its own side would have taken them).
        """
        if self._answered or not self._peer_left:
            return False
        info = tcp_info(self._transport)
        return info is not None and info.reset and not self._reached(info)

    def _reached(self, info: TcpInfo) -> bool:
        return info.acknowledged > 1 + self._sent_before


def _slices(parts: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), SLICE):
            end = start + SLICE
            yield view[start:end]


def _sized(headers: Headers) -> bool | None:
    """Whether the body tells its own end, or the connection's end does; None: it is coded in another way."""
    sized = False
    for name, value in headers:
        if name == b"content-length":
            sized = True
        elif name == b"transfer-encoding":
            if sized or value.lower() != b"chunked":
                return None
            sized = True
    return sized


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers)
