"""The replies in the bytes of one worker connection.

Owns: the parser and its callbacks, and the end of a reply by its framing. Must never enter: a socket, a
dialect. Source of the rules: RFC 9112.
"""

from __future__ import annotations

from typing import Any

import httptools

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Headers, ReplyHead
from gateway.limits import HeadLimits

_TOO_LARGE = "the head of the worker's reply is over the size limit"
_TOO_MANY = "the head of the worker's reply has more lines than the limit"


class ReplyParser:
    """Takes one reply after another apart. The connection reads and clears the attributes."""

    def __init__(self, limits: HeadLimits) -> None:
        self._limits = limits
        self._parser: Any = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        """Expect another reply."""
        self.head: ReplyHead | None = None
        #: Body bytes that were not taken, and their number.
        self.chunks: list[bytes] = []
        self.buffered = 0
        self.complete = False
        #: The connection can carry another request (RFC 9112, section 9.3).
        self.persistent = False
        #: The end of the connection is the end of the reply (RFC 9112, section 6.3).
        self.until_close = False
        self._error: UpstreamMalformed | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        #: Bytes in succession that are not part of a body: heads, trailers, chunk extensions.
        self._non_body_bytes = 0

    def feed(self, data: memoryview, size: int) -> UpstreamMalformed | None:
        """Parse the ``size`` bytes of ``data``; return the error if they are not HTTP/1.1 or over a limit."""
        self._non_body_bytes += size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return UpstreamMalformed("the worker switched protocols")
        except httptools.HttpParserError as error:
            return self._error or UpstreamMalformed("the worker's reply is not HTTP/1.1", cause=error)
        if self._non_body_bytes > self._limits.size:
            return UpstreamMalformed(_TOO_LARGE, limit="reply_head")
        return None

    def close(self) -> None:
        """Break the reference cycle with the parser; ``feed`` is not called again."""
        self._parser = None

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("more bytes than one reply")  # stops the parser; the connection is closed
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # trailers are dropped
            self._headers.append((name.lower(), value.strip(b" ")))

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if 100 <= status < 200:
            if status == 101:
                self._reject("the worker switched protocols")
            return
        if not 200 <= status <= 599:
            self._reject("the worker's status code is not one of HTTP's")
        headers, limits = self._headers, self._limits
        if self._non_body_bytes > limits.size and _size(headers) > limits.size:
            self._reject(_TOO_LARGE, limit="reply_head")
        if len(headers) > limits.lines:
            self._reject(_TOO_MANY, limit="reply_head")
        framed = False
        for name, value in headers:
            if name == b"content-length":
                framed = True
            elif name == b"transfer-encoding":
                if framed or value.lower() != b"chunked":
                    self._reject("the worker's reply has an unknown transfer coding")
                framed = True
        self.until_close = not framed
        self._non_body_bytes = 0
        self.head = ReplyHead(status, headers)

    def on_body(self, body: bytes) -> None:
        self._non_body_bytes = 0
        self.chunks.append(body)
        self.buffered += len(body)

    def on_message_complete(self) -> None:
        if self.head is not None:
            self.complete = True
            self.persistent = self._parser.should_keep_alive()

    def _reject(self, message: str, limit: str | None = None) -> None:
        """Stop the parser: it would take what follows in the same read for the reply."""
        self._error = UpstreamMalformed(message, limit=limit)
        raise ValueError(message)


def _size(headers: Headers) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers)
