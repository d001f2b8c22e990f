"""A format's request on the wire."""

from __future__ import annotations

import httptools
import pytest

from gateway.formats.contract import UpstreamRequest
from gateway.upstream.address import Address
from gateway.upstream.encode import encode_head


def test_head_is_exact() -> None:
    """Request line, Host, the format's lines in order, the true length, a blank line; nothing else."""
    request = UpstreamRequest(
        b"POST", b"/v1/generate", ((b"x-b", b"2"), (b"x-a", b"1"), (b"x-b", b"\xff")), b"12345"
    )
    assert encode_head(request, Address.parse("http://worker:30000/v1")) == (
        b"POST /v1/generate HTTP/1.1\r\nhost: worker:30000\r\n"
        b"x-b: 2\r\nx-a: 1\r\nx-b: \xff\r\ncontent-length: 5\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://worker", b"worker"),
        ("https://worker:8443/", b"worker:8443"),
        ("http://[::1]:30000", b"[::1]:30000"),
        ("http://10.0.0.1:80", b"10.0.0.1:80"),
    ],
)
def test_host_is_as_the_url_has_it(url: str, host: bytes) -> None:
    """Host is the URL's authority, brackets and port included."""
    request = UpstreamRequest(b"PUT", b"/", (), b"")
    assert encode_head(request, Address.parse(url)) == (
        b"PUT / HTTP/1.1\r\nhost: " + host + b"\r\ncontent-length: 0\r\n\r\n"
    )


def test_head_is_http() -> None:
    """A parser that is not ours reads it back."""
    seen: list[tuple[bytes, bytes]] = []

    class Reads:
        def on_header(self, name: bytes, value: bytes) -> None:
            seen.append((name, value))

        def on_body(self, body: bytes) -> None:
            seen.append((b"", body))

    request = UpstreamRequest(b"POST", b"/generate", ((b"content-type", b"application/json"),), b"{}")
    parser = httptools.HttpRequestParser(Reads())
    parser.feed_data(encode_head(request, Address.parse("http://w:1")) + request.body)
    assert parser.get_method() == b"POST"
    assert seen == [
        (b"host", b"w:1"),
        (b"content-type", b"application/json"),
        (b"content-length", b"2"),
        (b"", b"{}"),
    ]
