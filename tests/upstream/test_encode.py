"""The head of a request to a worker."""

from __future__ import annotations

from gateway.formats.contract import UpstreamRequest
from gateway.upstream.encode import encode_head


def test_length_is_that_of_all_parts_of_the_body() -> None:
    request = UpstreamRequest(b"POST", b"/generate", [(b"a", b"b")], b"12", (memoryview(b"345"),))
    head = b"POST /generate HTTP/1.1\r\nhost: w\r\na: b\r\ncontent-length: %d\r\n\r\n"
    assert encode_head(request, b"host: w\r\n") == head % 5
    assert encode_head(request._replace(rest=()), b"host: w\r\n") == head % 2
