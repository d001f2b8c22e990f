"""The URL of a worker, with a rank at its end: what is sent there, and which may be registered."""

from __future__ import annotations

import pytest

from gateway.formats.contract import UpstreamRequest
from gateway.upstream.address import Address, BadWorkerUrl, identity_of
from gateway.upstream.encode import encode_head
from gateway.upstream.url_patterns import UrlPattern


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "prefix", "authority", "rank"),
    [
        ("http://worker:30000", "worker", 30000, False, b"", b"worker:30000", None),
        ("https://worker", "worker", 443, True, b"", b"worker", None),
        ("HTTP://Worker:1/", "worker", 1, False, b"", b"Worker:1", None),
        ("https://worker:8443/a/b/", "worker", 8443, True, b"/a/b", b"worker:8443", None),
        ("http://worker//", "worker", 80, False, b"", b"worker", None),
        ("http://10.0.0.1:65535/%20x", "10.0.0.1", 65535, False, b"/%20x", b"10.0.0.1:65535", None),
        ("http://[2001:db8::1]/v1", "2001:db8::1", 80, False, b"/v1", b"[2001:db8::1]", None),
        ("https://[2001:db8::1]:1@12", "2001:db8::1", 1, True, b"", b"[2001:db8::1]:1", 12),
        ("http://worker:1/a/b@3", "worker", 1, False, b"/a/b", b"worker:1", 3),
        ("http://worker:1/a:2", "worker", 1, False, b"/a:2", b"worker:1", None),
    ],
)
def test_url_is_split_into_what_to_connect_to_and_what_to_send(
    url: str, host: str, port: int, tls: bool, prefix: bytes, authority: bytes, rank: int | None
) -> None:
    assert Address.parse(url) == Address(url, host, port, tls, prefix, authority, rank)


@pytest.mark.parametrize(
    "url",
    [
        *("worker:30000", "//worker:30000", "ftp://worker", "http:///generate", "http://:30000"),
        *("http://::1:30000", "http://[::1", "http://worker:0", "http://worker:65536", "http://worker:port"),
        *("", " http://worker", "http://worker\n", "http://worker\x7f", "http://wörker", "http://worker/ü"),
        *("http://worker/?", "http://worker/#"),
    ],
)
def test_url_that_is_not_plain_http_is_refused_and_named(url: str) -> None:
    with pytest.raises(BadWorkerUrl) as caught:
        Address.parse(url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:secret@worker:99999", "http://@worker", "ftp://me:secret@wörker", "me:secret@worker"),
        *(
            "http://secret@1",
            "http://a@secret:1@2",
            "http://secret:1@x",
            "http://secret:1@123456",
            "http://secret:1@",
        ),
    ],
)
def test_at_sign_that_names_no_rank_is_refused_and_not_repeated(url: str) -> None:
    """It may follow a credential."""
    with pytest.raises(BadWorkerUrl, match="credentials") as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("identity", "spellings"),
    [
        (
            "http://127.0.0.1:8501",
            "http://127.0.0.1:8501/ http://127.0.0.1:8501// HTTP://127.0.0.1:08501 http://127.1:8501"
            " http://2130706433:8501 http://0x7f.0.1:8501 http://0177.0.0.1:8501 http://[::ffff:127.0.0.1]:8501"
            " http://[::FFFF:7f00:1]:8501 http://127.0.0.1:8501/. http://127.0.0.1:8501/a/..",
        ),
        ("http://worker", "http://worker:80 http://WORKER http://worker: http://worker:0080/"),
        ("https://worker", "https://worker:443 HTTPS://Worker/./"),
        (
            "http://worker:1/a/~b",
            "http://worker:1/a/%7eb/ http://worker:1/a/x/../~b http://worker:1/./a/%7Eb/%2e",
        ),
        ("http://worker:1/%2F", "http://worker:1/%2f"),
        ("http://[2001:db8::1]:1", "http://[2001:DB8:0:0::1]:1/"),
        ("http://worker:80@3", "http://worker:080@00003 HTTP://Worker:80/@3"),
    ],
)
def test_every_spelling_of_a_url_has_one_identity(identity: str, spellings: str) -> None:
    """It is a spelling itself."""
    assert {identity_of(url) for url in (identity, *spellings.split())} == {identity}


def test_different_urls_have_different_identities() -> None:
    hosts = [
        "worker",
        "localhost",
        "localhost.",
        "127.0.0.1",
        "127.0.0.2",
        "0",
        "127.0.0.256",
        "[::1]",
        "09.1",
    ]
    paths = ["", "/a", "/A", "/a//b", "/a%2Fb", "/a/b", "@1", "@2"]
    urls = [f"{scheme}://{host}:1{path}" for scheme in ("http", "https") for host in hosts for path in paths]
    assert (
        len({identity_of(url) for url in [*urls, "http://worker", "https://worker", "no URL"]})
        == len(urls) + 3
    )


@pytest.mark.parametrize(
    ("pattern", "allowed", "others"),
    [
        ("*", ["https://anything:1/at/all"], []),
        ("worker", ["http://worker", "http://WORKER:30000/p"], ["http://worker.evil"]),
        ("http://worker", [], ["https://worker"]),
        ("worker:80", ["http://worker"], []),
        ("worker:*", ["http://worker:1"], []),
        ("worker:8000", [], ["http://worker:8001"]),
        ("*.pool", ["http://a.pool"], ["http://a.b.pool"]),
        ("gpu-*", ["http://gpu-7"], ["http://gpu-7.evil"]),
        ("10.0.0.0/8", ["http://10.1.2.3:1"], ["http://11.1.2.3:1", "http://167772161:1"]),
        ("10.0.0.0/8:30000", ["http://10.1.2.3:30000@5"], []),
        ("[fd00::/8]", ["http://[fd00::1]:1"], []),
        ("[fd00::/8]:1", [], ["http://[fe00::1]:1"]),
        ("[::1]", ["http://[0:0::1]:1"], []),
    ],
)
def test_pattern_is_held_against_the_parts_of_a_url(
    pattern: str, allowed: list[str], others: list[str]
) -> None:
    """Nothing in a path or a longer name looks like another host."""
    assert [url for url in allowed + others if UrlPattern.parse(pattern).matches(url)] == allowed


@pytest.mark.parametrize(
    "text",
    ["", "ftp://a", "http://a/path", "a b", "10.0.0.0/99", "[10.0.0.0/8", "a:0", "a:70000", "me@a", "[::1"],
)
def test_pattern_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|network|port"):
        UrlPattern.parse(text)


def test_head_has_host_the_lines_of_the_format_and_the_length() -> None:
    request = UpstreamRequest(
        b"POST", b"/v1/generate", ((b"x-b", b"2"), (b"x-a", b"1"), (b"x-b", b"\xff")), b"12345"
    )
    assert encode_head(request, b"host: worker:30000\r\nvia: 1.1 me\r\n") == (
        b"POST /v1/generate HTTP/1.1\r\nhost: worker:30000\r\nvia: 1.1 me\r\n"
        b"x-b: 2\r\nx-a: 1\r\nx-b: \xff\r\ncontent-length: 5\r\n\r\n"
    )
