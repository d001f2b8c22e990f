"""The requests in the bytes of a client: what is one, and what is rejected. Without a connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from gateway.downstream.head_rules import InvalidRequest, origin_form
from gateway.downstream.request import ServerRequest
from gateway.downstream.request_parser import RequestParser
from gateway.limits import DEFAULT_HEAD, HeadLimits
from gateway.loop.stepper import CoroutineStepper
from tests.downstream.raw import CHUNKED, OFFER, SMALL, TYPE, chunk, plain

POST = b"POST /generate HTTP/1.1\r\n"
HEAD = POST + b"host: g\r\n"
SIZED = b"content-length: %d\r\n\r\n%b" % (len(SMALL), SMALL)


def parsed(pieces: Iterable[bytes]) -> RequestParser:
    parser = RequestParser(cast(Any, None), DEFAULT_HEAD)
    for piece in pieces:
        parser.feed(piece)
    return parser


def cut(data: bytes, size: int) -> Iterable[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def body_of(request: ServerRequest) -> bytes:
    """Return the body of a complete request."""
    found: list[bytes] = []

    async def read() -> None:
        found.append(await request.read_body(1 << 20))

    CoroutineStepper().start(read())
    return found[0]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_requests_are_taken_apart_however_they_are_cut(size: int) -> None:
    sized, chunked = plain(SMALL, "X-Odd: \t a b \t "), CHUNKED + chunk(SMALL[:9]) + chunk(SMALL[9:])
    parser = parsed(cut(sized + chunked + b"0\r\nx-late: 1\r\n\r\n" + HEAD + b"content-le", size))
    first, second = parser.requests
    assert (first.method, first.target, first.http11, first.persistent) == (b"POST", b"/generate", True, True)
    assert (b"x-odd", b"a b") in first.headers and first.body.content_length == len(SMALL)
    assert body_of(first) == body_of(second) == SMALL
    assert b"x-late" not in dict(second.headers)
    assert (parser.request, parser.in_head, parser.begun) == (None, True, 3)


def test_request_is_there_when_its_head_is_complete() -> None:
    parser = parsed([HEAD + b"expect: 100-CONTINUE\r\ncontent-length: 5\r\n\r\nhe"])
    [request] = parser.requests
    assert parser.request is request
    assert (request.body.expects_continue, request.body.complete, request.body.unread) == (True, False, 2)


_CODED = (
    b"gzip, chunked",
    b"identity, chunked",
    b"identity\r\ntransfer-encoding: chunked",
    b",chunked",
    b"gzip",
)


@pytest.mark.parametrize(
    "data",
    [
        *(HEAD + b"transfer-encoding: %b\r\n\r\n" % coding + chunk(SMALL) for coding in _CODED),
        POST.replace(b"1.1", b"1.0") + b"host: g\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(SMALL),
        HEAD + "\r\n".join((*OFFER, "")).encode() + b"transfer-encoding: gzip, chunked\r\n\r\n",
        POST + SIZED,
        HEAD + b"host: a\r\n" + SIZED,
        HEAD.replace(b"1.1", b"1.0") + b"host: a\r\n" + SIZED,
        HEAD.replace(b"1.1", b"2.0") + SIZED,
        b"POST /generate\r\n\r\n",
    ],
)
def test_head_that_another_server_could_read_differently_is_rejected_with_the_reason(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="^Invalid HTTP request: it") as rejected:
        parsed([data])
    assert (rejected.value.status, rejected.value.limit) == (400, None)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
        HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        HEAD + b"content-length: 1e3\r\n\r\n",
        HEAD + b" folded: x\r\ncontent-length: 2\r\n\r\n{}",
        POST + b"host : g\r\ncontent-length: 2\r\n\r\n{}",
        HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        CHUNKED + b"f" * 18 + b"\r\n{}",
        CHUNKED + b"2\r\n{}X\r\n",
        b"POST /gen\x00erate HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n{}",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_bytes_that_are_not_a_request_are_rejected(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        parsed([data])
    assert rejected.value.status == 400


@pytest.mark.parametrize(
    ("start", "endless"),
    [
        (b"POST /", b"x" * 4096),
        (POST + b"x: ", b"y" * 4096),
        (POST, b"x: yyyyyyyy\r\n" * 300),
        (CHUNKED + b"5;", b"z" * 4096),
        (CHUNKED + b"0\r\n", b"x: y\r\n" * 600),
    ],
    ids=["target", "line", "lines", "chunk-extension", "trailers"],
)
def test_bytes_that_are_not_part_of_a_body_are_bounded(start: bytes, endless: bytes) -> None:
    parser = parsed([start, *[endless] * (DEFAULT_HEAD.size // len(endless) - 1)])
    with pytest.raises(InvalidRequest) as rejected:
        for _ in range(3):
            parser.feed(endless)
    assert (rejected.value.status, rejected.value.limit) == (431, "request_head_size")


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("chunked", [False, True])
def test_offer_of_another_protocol_is_ignored(size: int, chunked: bool) -> None:
    sent = plain(SMALL, *OFFER)
    if chunked:
        lines = "\r\n".join(OFFER).encode() + b"\r\n\r\n"
        sent = CHUNKED[:-2] + lines + chunk(SMALL[:9]) + chunk(SMALL[9:]) + b"0\r\n\r\n"
    bare = "\r\n".join(["GET /live HTTP/1.1", "host: g", TYPE, *OFFER, "", ""]).encode()
    first, second, last = parsed(cut(sent + bare + plain(b"{}"), size)).requests
    assert (body_of(first), body_of(second), body_of(last)) == (SMALL, b"", b"{}")
    assert [request.method for request in (first, second, last)] == [b"POST", b"GET", b"POST"]


def test_thousands_of_offers_in_one_read_are_all_requests() -> None:
    """Each needs a new parser, and recursion would exceed the stack."""
    offer = b"GET /live HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    assert len(parsed([offer * 3000]).requests) == 3000


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://host/generate?a=b", b"/generate?a=b"),
        (b"http://host:1", b"/"),
        (b"*", b"*"),
        (b"host:443", b"host:443"),
    ],
)
def test_absolute_url_becomes_its_path_and_query(target: bytes, path: bytes) -> None:
    assert origin_form(target) == path


@pytest.mark.parametrize("host", [b"", b"host: g\r\n"])
def test_request_of_http_1_0_may_have_no_host(host: bytes) -> None:
    [request] = parsed([POST.replace(b"1.1", b"1.0") + host + SIZED]).requests
    assert (request.http11, request.persistent, body_of(request)) == (False, False, SMALL)


@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        (HeadLimits(size=len("/generatehost: g\r\nx: y\r\n"), lines=2), None),
        (HeadLimits(size=1000, lines=1), "request_head_lines"),
        (HeadLimits(size=len("/generatehost: g\r\nx: y\r\n") - 1, lines=2), "request_head_size"),
    ],
)
def test_head_is_accepted_up_to_its_limits_and_bytes_behind_it_do_not_count(
    limits: HeadLimits, reached: str | None
) -> None:
    parser = RequestParser(cast(Any, None), limits)
    data = HEAD + b"x: y\r\n\r\n" + HEAD
    if reached is None:
        parser.feed(data)
        assert len(parser.requests) == 1
        return
    with pytest.raises(InvalidRequest) as rejected:
        parser.feed(data)
    assert (rejected.value.status, rejected.value.limit) == (431, reached)
