"""The requests in the bytes of one client connection.

Owns: the parser and its callbacks, and the requests that are not served yet. Must never enter: a socket, a
timer, replies.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import httptools

from gateway.downstream import encode
from gateway.downstream.head_rules import (
    LENGTH_DIGITS,
    InvalidRequest,
    check_size,
    check_transfer_encoding,
    check_version,
    framing,
    too_many_bytes,
    too_many_digits,
)
from gateway.downstream.request import ReplyConnection, ServerRequest
from gateway.limits import HeadLimits


class RequestParser:
    """Turns received bytes into requests.

    ``requests`` are those whose head is complete and that the connection has not taken yet, oldest first;
    ``request`` is the one whose body is still arriving, in ``requests`` or not.
    """

    def __init__(self, connection: ReplyConnection, limits: HeadLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._parser: Any = httptools.HttpRequestParser(self)
        self.requests: deque[ServerRequest] = deque()
        self.request: ServerRequest | None = None
        self.in_head = False
        #: Requests that were begun, and bytes of bodies that arrived: the progress a client makes.
        self.begun = 0
        self.body_bytes = 0
        #: Bytes in succession that are not part of a body: a head, chunk extensions, trailers.
        self._non_body_bytes = 0
        self._target = b""
        #: The lines of the last head, as far as it was read.
        self.headers: list[tuple[bytes, bytes]] = []

    def feed(self, data: bytes) -> None:
        """Parse ``data``. Raise InvalidRequest if it is not HTTP/1.x or exceeds a limit.

        A fault of the gateway, such as MemoryError, is raised as it is. In both cases nothing can be parsed
        any more.
        """
        self._non_body_bytes += len(data)
        rest: bytes | memoryview = data
        try:
            while rest:
                try:
                    self._parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as offer:
                    rest = memoryview(rest)[offer.args[0] :]
                    self._decline_upgrade()
        except httptools.HttpParserError as error:
            if error.__context__ is not None:  # raised by a callback
                raise error.__context__ from None
            raise InvalidRequest(400, "Invalid HTTP request") from None
        if self._non_body_bytes > self._limits.size:
            raise too_many_bytes()

    def close(self) -> None:
        """Break the reference cycles with the parser and the connection; ``feed`` is not called again."""
        self._parser = self._connection = None  # type: ignore[assignment]

    def _decline_upgrade(self) -> None:
        """Go on with HTTP/1.1 as if the request had not offered another protocol (RFC 9110, section 7.8).

        The parser takes the body of such a request for bytes of the other protocol. So a new parser reads on,
        after a head with the same framing and without the offer.
        """
        self._parser = httptools.HttpRequestParser(self)
        if self.request is not None:
            lines = encode.lines(framing(self.request.headers))
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)

    # -- called by the parser

    def on_message_begin(self) -> None:
        self.in_head = True
        self.begun += 1
        self._target = b""
        self.headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.request is None:  # trailers are dropped
            self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.in_head = False
        if self.request is not None:
            return  # the head that replaces one with an offer: see _decline_upgrade
        headers, limits = self.headers, self._limits
        if len(headers) > limits.lines or self._non_body_bytes > limits.size:
            check_size(self._target, headers, limits)
        parser = self._parser
        version = parser.get_http_version()
        http11 = version == "1.1"
        request = ServerRequest(self._connection, parser.get_method(), self._target, headers, http11)
        request.persistent = parser.should_keep_alive()
        hosts = 0
        for name, value in headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                if len(value) > LENGTH_DIGITS:
                    raise too_many_digits()
                request.body.content_length = int(value)
            elif name == b"expect":
                request.body.expects_continue = http11 and value.lower() == b"100-continue"
            elif name == b"transfer-encoding":
                check_transfer_encoding(value, http11)
        if hosts != 1 or not http11:
            check_version(version, hosts)
        self._non_body_bytes = 0
        self.request = request
        self.requests.append(request)

    def on_body(self, body: bytes) -> None:
        self._non_body_bytes = 0
        self.body_bytes += len(body)
        request = self.request
        if request is not None and not request.replied:  # else the reply did not wait for all of the body
            request.body.append(body)

    def on_message_complete(self) -> None:
        self._non_body_bytes = 0
        request = self.request
        if request is None:
            return
        if self._parser.should_upgrade() and framing(request.headers):
            return  # the body follows: see _decline_upgrade
        request.body.complete = True
        self.request = None
