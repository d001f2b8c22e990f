"""The head of every request to a worker: exchanges, probes, aborts and control calls.

Owns: the request line, Content-Length and the order of the lines; a header for all requests belongs here.
(Host and Via are the same for all requests to a worker, so the fleet makes them.) Must never enter: a
dialect, sockets.
"""

from __future__ import annotations

from gateway.formats.contract import UpstreamRequest


def encode_head(request: UpstreamRequest, own_lines: bytes) -> bytes:
    """Return the request line and headers, empty line included.

    ``own_lines`` are those that every request to the worker has: ``Host`` and ``Via``.

    A header added here is sent twice if ``request.headers`` has it already, as a client may have sent it.
    Add its name to ``_NOT_UPSTREAM`` in gateway.formats.headers as well, which removes it from a client's.
    """
    return b"%b %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
        request.method,
        request.target,
        own_lines,
        b"".join([b"%b: %b\r\n" % line for line in request.headers]),
        len(request.body) + sum(map(len, request.rest)) if request.rest else len(request.body),
    )
