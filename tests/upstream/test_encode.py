"""The head of a request to a worker."""

from __future__ import annotations

from gateway.formats.contract import UpstreamRequest
from gateway.upstream.address import Address
from gateway.upstream.encode import encode_head


def test_head_has_host_the_lines_of_the_format_and_the_length() -> None:
    request = UpstreamRequest(
        b"POST", b"/v1/generate", ((b"x-b", b"2"), (b"x-a", b"1"), (b"x-b", b"\xff")), b"12345"
    )
    assert encode_head(request, Address.parse("http://worker:30000/v1")) == (
        b"POST /v1/generate HTTP/1.1\r\nhost: worker:30000\r\n"
        b"x-b: 2\r\nx-a: 1\r\nx-b: \xff\r\ncontent-length: 5\r\n\r\n"
    )
