"""The URL of a worker, with a rank at its end."""

from __future__ import annotations

import pytest

from gateway.upstream.address import Address, BadWorkerUrl


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "rank"),
    [
        ("http://worker:30000@0", "worker", 30000, b"", 0),
        ("https://worker:30000@7", "worker", 30000, b"", 7),
        ("http://[2001:db8::1]:1@12", "2001:db8::1", 1, b"", 12),
        ("http://worker:1/a/b@3", "worker", 1, b"/a/b", 3),
        ("http://worker:1/a:2", "worker", 1, b"/a:2", None),
    ],
)
def test_rank_at_the_end_is_not_part_of_the_address(
    url: str, host: str, port: int, prefix: bytes, rank: int | None
) -> None:
    """The URL is kept as it is; the connection goes to the server without the rank."""
    address = Address.parse(url)
    assert (address.url, address.host, address.port) == (url, host, port)
    assert (address.prefix, address.rank) == (prefix, rank)
    assert b"@" not in address.authority


@pytest.mark.parametrize(
    "url", ["http://worker@1", "http://a@b:1@2", "http://worker:1@x", "http://worker:1@123456", "http://w:1@"]
)
def test_at_sign_that_names_no_rank_is_refused(url: str) -> None:
    """It may follow a credential, which no message may repeat."""
    with pytest.raises(BadWorkerUrl, match="credentials") as caught:
        Address.parse(url)
    assert url not in str(caught.value)
