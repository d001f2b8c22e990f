"""An HTTP/1.1 client connection to a worker.

Owns: the order of a request and its reply, back-pressure, and how an early end is reported. Must never enter:
a dialect, the choice of a worker, retries.

The framing of replies is ``ReplyParser``'s, the proof that a request was not received is ``ReceiptProof``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from gateway.errors import NotReceived, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import ReplyHead
from gateway.limits import DEFAULT_HEAD, HeadLimits
from gateway.loop.sockets import enable_tcp_keepalive
from gateway.loop.stepper import Wakeup
from gateway.loop.unreachable_peers import UnreachablePeers
from gateway.loop.write_batch import WriteBatch
from gateway.upstream.read_buffer import READ_SIZE, USUAL_READ, ReadBuffer
from gateway.upstream.receipt_proof import ReceiptProof
from gateway.upstream.reply_parser import ReplyParser
from gateway.upstream.sliced_writer import SlicedWriter

#: Bytes of a reply that may wait to be taken before the socket is no longer read.
HIGH_WATER: Final = 32 * 1024
#: Bytes of a body from which it is written without being joined with its head.
LARGE: Final = 64 * 1024


class Connection(asyncio.BufferedProtocol):
    """A connection to one worker, used for one exchange at a time: ``send``, ``head``, then ``read`` until
    b"".

    ``take`` is ``read`` without waiting, for a caller that knows that the connection is ``ready``; until then
    ``changed`` is what to wait for. ``head``, ``read`` and ``take`` raise UpstreamIncomplete when the
    connection ends early and UpstreamMalformed when the bytes are not HTTP/1.1. ``head`` raises NotReceived
    when the worker provably did not receive the request.

    ``read_buffer`` (READ_SIZE bytes) may be shared by all connections of an event loop. ``head_limits`` also
    bound other bytes in succession that are not part of a body: trailers, chunk extensions, interim replies.
    ``on_idle_end`` is called with the connection if the worker closes it while it carries no request.
    """

    def __init__(
        self,
        read_buffer: bytearray,
        write_batch: WriteBatch | None = None,
        head_limits: HeadLimits = DEFAULT_HEAD,
        unreachable_peers: UnreachablePeers | None = None,
        on_idle_end: Callable[[Connection], None] | None = None,
    ) -> None:
        self._write_batch = write_batch or WriteBatch()
        self._buffer = ReadBuffer(read_buffer)
        self._reply = ReplyParser(head_limits)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._receipt: ReceiptProof = None  # type: ignore[assignment]
        #: Over TLS only.
        self._sliced_writer: SlicedWriter | None = None
        #: Fired by every change of the connection.
        self.changed = Wakeup()
        #: ``take`` returns or raises something: bytes, the end, or an error.
        self.ready = False
        self._request_sent = False
        self._error: UpstreamIncomplete | UpstreamMalformed | None = None
        self._reading_paused = False
        self._silent = False
        self.closed = False
        #: When the connection was given back (``time.monotonic``); 0: it has carried no request yet.
        self.idle_since = 0.0
        #: The address that it is connected to.
        self.address = ""
        self._unreachable_peers = unreachable_peers
        self._on_idle_end = on_idle_end

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self._request_sent else "idle"
        return f"<Connection {state} buffered={self._reply.buffered}>"

    @property
    def usable(self) -> bool:
        """False once the connection is known to be closed, by whichever side."""
        return not self.closed and not self._transport.is_closing()

    @property
    def exhausted(self) -> bool:
        """True if the reply is complete and all of it was taken."""
        return self._reply.complete and not self._reply.chunks

    @property
    def reply_head(self) -> ReplyHead | None:
        """The head of the current reply; None before it arrives and after ``recycle``."""
        return self._reply.head

    @property
    def reached_worker(self) -> bool:
        """True if the worker may have received some of the request: ``head`` cannot raise NotReceived."""
        return self._receipt.may_be_received()

    # -- called by the exchange

    def send(self, head: bytes, body: bytes, rest: Sequence[bytes | memoryview] = ()) -> None:
        """Write one request. ``head`` ends with its empty line, ``rest`` is the end of the body in pieces."""
        self._request_sent = True
        size = len(head) + len(body)
        if rest:
            size += sum(map(len, rest))
        self._receipt.request_bytes = size
        if not self.usable:
            self._fail(NotReceived("the worker closed the connection before anything was sent"))
        elif len(body) < LARGE and not rest:
            self._write_batch.write(self._transport, head + body)
        elif self._sliced_writer is not None:
            self._write_batch.flush()
            self._sliced_writer.write((head, body, *rest))
        else:
            self._write_batch.write_parts(self._transport, (head, body, *rest))

    async def stays_silent(self, seconds: float) -> bool:
        """Return True if the connection is not ``ready`` for ``seconds``; False as soon as it is."""
        self._silent = False
        timer = asyncio.get_running_loop().call_later(seconds, self._note_silence)
        try:
            while not self.ready and not self._silent:
                await self.changed  # also fired by bytes that give nothing to take, such as half a chunk size
        finally:
            timer.cancel()
        return not self.ready

    async def head(self) -> ReplyHead:
        """Return the status and headers of the final reply; interim replies are skipped."""
        while self._reply.head is None:
            if self._error is not None:
                raise self._error
            if self._receipt.peer_closed:
                await self._receipt.decided()
                self._end(None)
                self.close()
            else:
                await self.changed
        return self._reply.head

    async def read(self) -> bytes:
        """Return all body bytes since the last call, at least one; b"" when the reply is complete."""
        while not self.ready:
            await self.changed
        return self.take()

    def take(self) -> bytes:
        """Return what ``read`` does; the connection must be ``ready``."""
        reply = self._reply
        chunks = reply.chunks
        if not chunks:
            if self._error is not None and not reply.complete:
                raise self._error
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        reply.buffered = 0
        self.ready = reply.complete or self._error is not None
        if self._reading_paused and not self.closed:
            self._reading_paused = False
            self._transport.resume_reading()
        return data

    def recycle(self) -> bool:
        """Prepare for another request; close and return False if the connection cannot carry one."""
        reply = self._reply
        if not (reply.complete and reply.persistent and self.usable):
            self.close()
            return False
        unsent = self._transport.get_write_buffer_size()
        if reply.chunks or unsent or (self._sliced_writer is not None and self._sliced_writer.pending):
            self.close()
            return False
        reply.reset()
        self._receipt.next_request()
        self.ready = self._request_sent = False
        return True

    def close(self) -> None:
        """Close at once and drop what was not sent yet."""
        if not self.closed:
            self.closed = True
            self._transport.abort()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._receipt = ReceiptProof(transport)
        if transport.get_extra_info("sslcontext") is not None:
            self._sliced_writer = SlicedWriter(self._transport)
            # asyncio also counts encrypted bytes that it buffers; its default is eight times this.
            cast(Any, transport).set_read_buffer_limits(HIGH_WATER)
        enable_tcp_keepalive(transport)
        if self._unreachable_peers is not None:
            self._unreachable_peers.add(self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.current

    def buffer_updated(self, nbytes: int) -> None:
        reply = self._reply
        if not self._request_sent or reply.complete:
            # Bytes without a request: what follows could be taken for the next reply.
            return self.close()
        self._receipt.answered = True
        error = reply.feed(self._buffer.current[:nbytes], nbytes)
        if error is not None:
            if self._error is None:
                self._fail(error)
            self.close()
        if reply.chunks or reply.complete:
            self.ready = True
        if nbytes >= USUAL_READ:
            self._buffer.adapt(nbytes, reply.chunks)
        self.changed.fire()
        if self.closed or self._reading_paused:
            return
        if reply.buffered > HIGH_WATER:
            self._reading_paused = True
            self._transport.pause_reading()
        elif nbytes == READ_SIZE and self._buffer.full_too_often():
            # There is more, and asyncio would read on before anything else has its turn.
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def pause_writing(self) -> None:
        if self._sliced_writer is not None:
            self._sliced_writer.pause()

    def resume_writing(self) -> None:
        if self._sliced_writer is not None:
            self._sliced_writer.resume()

    def eof_received(self) -> bool:
        """Note that the worker will send no more; True keeps the socket open until ``head`` has the proof."""
        self._receipt.peer_closed = True
        reply = self._reply
        if reply.head is not None and reply.until_close:
            reply.complete = self.ready = True
        elif self._request_sent and self._receipt.can_be_decided():
            self.changed.fire()
            return True
        self._note_idle_end()
        self._end(None)
        self.close()  # without flushing: the worker may never read the unsent bytes
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self._note_idle_end()
        self.closed = True
        if self._unreachable_peers is not None:
            self._unreachable_peers.remove(self._transport)
        self._end(exc)
        self._reply.close()

    # -- internals

    def _read_on(self) -> None:
        if not self._reading_paused and not self.closed:
            self._transport.resume_reading()

    def _note_idle_end(self) -> None:
        if not self._request_sent and self._on_idle_end is not None:
            self._on_idle_end(self)

    def _note_silence(self) -> None:
        self._silent = True
        self.changed.fire()

    def _fail(self, error: UpstreamIncomplete | UpstreamMalformed) -> None:
        self._error = error
        self.ready = True

    def _end(self, cause: Exception | None) -> None:
        """Fail a request whose reply is incomplete; ``cause`` is what ended the connection."""
        if self._request_sent and not self._reply.complete and self._error is None:
            if self._receipt.not_received():
                self._fail(NotReceived("the worker closed the connection before it took the request"))
            else:
                self._fail(UpstreamIncomplete("the worker's reply broke off", cause=cause))
        self.changed.fire()
