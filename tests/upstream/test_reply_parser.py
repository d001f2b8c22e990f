"""The framing of replies: what is a complete reply, and what is malformed. Without a connection."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from gateway.errors import UpstreamMalformed
from gateway.limits import DEFAULT_HEAD
from gateway.upstream.reply_parser import ReplyParser

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"

FIVE = b"content-length: 5\r\n\r\nhello"
CHUNK, END = b"5\r\nhello\r\n", b"0\r\n\r\n"
CODED = b"transfer-encoding: "

#: Complete replies, their bodies, and whether the connection can carry another request.
COMPLETE = {
    "length": (OK + FIVE, b"hello", True),
    "empty": (OK + b"content-length: 0\r\n\r\n", b"", True),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n" + END, b"hello", True),
    "no chunk": (CHUNKED + END, b"", True),
    "chunk extensions": (CHUNKED + b'5;a=b;c="d e"\r\nhello\r\n0;last\r\n\r\n', b"hello", True),
    "upper-case size": (CHUNKED + b"A\r\n0123456789\r\n" + END, b"0123456789", True),
    "trailers": (CHUNKED + CHUNK + b"0\r\nx-sum: 1\r\nx-end: 2\r\n\r\n", b"hello", True),
    "space after the coding": (OK + CODED + b"chunked  \r\n\r\n" + CHUNK + END, b"hello", True),
    "mixed-case coding": (OK + b"Transfer-Encoding: Chunked\r\n\r\n" + CHUNK + END, b"hello", True),
    "interim replies": (
        b"HTTP/1.1 102 X\r\n\r\nHTTP/1.1 103 X\r\nlink: </a>\r\n\r\n" + OK + FIVE,
        b"hello",
        True,
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", b"", True),
    "no reason": (b"HTTP/1.1 200 \r\n" + FIVE, b"hello", True),
    "close announced": (OK + b"connection: close\r\n" + FIVE, b"hello", False),
    "old version": (b"HTTP/1.0 200 OK\r\n" + FIVE, b"hello", False),
    "old version kept": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n" + FIVE, b"hello", True),
    "upgrade offered": (OK + b"upgrade: h2c\r\nconnection: upgrade\r\n" + FIVE, b"hello", True),
}

#: Replies that no HTTP/1.1 server may send.
MALFORMED = {
    "not http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "status 099": b"HTTP/1.1 099 Early\r\ncontent-length: 0\r\n\r\n",
    "status 600": b"HTTP/1.1 600 Late\r\ncontent-length: 0\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "switched protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc",
    "both lengths": OK + b"content-length: 5\r\n" + CODED + b"chunked\r\n\r\n" + CHUNK + END,
    "two lengths": OK + b"content-length: 6\r\n" + FIVE,
    "negative length": OK + b"content-length: -5\r\n\r\nhello",
    "no number": OK + b"content-length: five\r\n\r\nhello",
    "vast length": OK + b"content-length: 99999999999999999999\r\n\r\nhello",
    "other coding": OK + CODED + b"gzip\r\n\r\nhello",
    "coding and a tab": OK + CODED + b"chunked\t\r\n\r\n" + CHUNK + END,
    "coding on top": OK + CODED + b"gzip, chunked\r\n\r\n" + CHUNK + END,
    "coding after": OK + CODED + b"chunked\r\n" + CODED + b"gzip\r\n\r\n" + CHUNK + END,
    "coding on top, a reply behind it": OK + CODED + b"gzip, chunked\r\n\r\n" + CHUNK + END + OK + FIVE,
    "switched in silence, a reply behind it": b"HTTP/1.1 101 S\r\n\r\n" + OK + b"content-length: 0\r\n\r\n",
    "space before colon": OK + b"content-length : 5\r\n\r\nhello",
    "nul in a header": OK + b"x: a\x00b\r\ncontent-length: 0\r\n\r\n",
}

#: Bodies that are malformed after a correct head, with the body bytes before the error.
MALFORMED_BODY = {
    "chunk size": (CHUNKED + CHUNK + b"xyz\r\n", b"hello"),
    "negative chunk": (CHUNKED + CHUNK + b"-1\r\n", b"hello"),
    "chunk too long": (CHUNKED + b"5\r\nhello!!\r\n0\r\n\r\n", b"hello"),
    "vast chunk": (CHUNKED + b"5\r\nhello\r\n" + b"f" * 20 + b"\r\n", b"hello"),
}


def feed(parser: ReplyParser, *pieces: bytes) -> UpstreamMalformed | None:
    """Feed ``pieces`` until one gives an error; return that."""
    for piece in pieces:
        if (error := parser.feed(memoryview(piece), len(piece))) is not None:
            return error
    return None


def parsed(*pieces: bytes) -> tuple[ReplyParser, UpstreamMalformed | None]:
    parser = ReplyParser(DEFAULT_HEAD)
    return parser, feed(parser, *pieces)


def bytewise(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


@pytest.mark.parametrize("split", [False, True], ids=["at-once", "byte-by-byte"])
@pytest.mark.parametrize("name", COMPLETE)
def test_reply_is_complete_at_the_end_of_its_framing(name: str, split: bool) -> None:
    reply, expected, persistent = COMPLETE[name]
    parser, error = parsed(*(bytewise(reply) if split else [reply]))
    assert error is None and parser.head is not None
    assert parser.head.status == int(reply.rsplit(b"HTTP/1.", 1)[1][2:5])
    assert (b"".join(parser.chunks), parser.buffered) == (expected, len(expected))
    assert (parser.complete, parser.persistent) == (True, persistent)


@pytest.mark.parametrize("seed", range(5))
def test_one_parser_takes_reply_after_reply_however_they_are_cut(seed: int) -> None:
    cuts, parser = random.Random(seed), ReplyParser(DEFAULT_HEAD)
    for reply, expected, persistent in COMPLETE.values():
        if not persistent:
            continue
        at = sorted({0, len(reply), *(cuts.randrange(len(reply)) for _ in range(4))})
        assert feed(parser, *(reply[start:end] for start, end in itertools.pairwise(at))) is None
        assert (b"".join(parser.chunks), parser.complete) == (expected, True)
        parser.reset()


def test_headers_keep_order_duplicates_and_values_and_lose_trailers() -> None:
    parser, error = parsed(
        b"HTTP/1.1 103 Hints\r\nlink: early\r\n\r\n"
        b"HTTP/1.1 201 Made\r\nX-B: 2\r\nx-a: \xff caf\xc3\xa9 \r\nX-B: 1\r\nx-empty:\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nx-late: 1\r\n\r\n"
    )
    assert error is None and parser.head is not None and parser.head.status == 201
    assert list(parser.head.headers) == [
        (b"x-b", b"2"),
        (b"x-a", b"\xff caf\xc3\xa9"),
        (b"x-b", b"1"),
        (b"x-empty", b""),
        (b"transfer-encoding", b"chunked"),
    ]


def test_folded_line_gives_no_value_with_a_line_break() -> None:
    """A line break in a value would be a header line of its own for the client."""
    parser, error = parsed(OK + b"x-a: one\r\n two\r\ncontent-length: 0\r\n\r\n")
    headers = parser.head.headers if error is None and parser.head is not None else ()
    assert not any(b"\r" in value or b"\n" in value for _, value in headers)


@pytest.mark.parametrize("name", [*MALFORMED, *MALFORMED_BODY])
def test_reply_that_is_not_http_1_1_is_malformed_and_the_bytes_before_are_given(name: str) -> None:
    reply, before = (MALFORMED[name], None) if name in MALFORMED else MALFORMED_BODY[name]
    parser, error = parsed(reply)
    assert error is not None and not parser.complete
    assert (parser.head is None) is (before is None)
    assert b"".join(parser.chunks).startswith(before or b"")


def test_head_may_have_as_many_lines_as_the_limit() -> None:
    lines = b"".join(b"x-%d: %b\r\n" % (number, b"v" * 1000) for number in range(255))
    parser, error = parsed(OK + lines + FIVE)
    assert error is None and parser.head is not None and len(parser.head.headers) == 256
    _, error = parsed(OK + b"x: y\r\n" * 257 + b"\r\n")
    assert error is not None and (error.limit, "more lines" in error.message) == ("reply_head", True)


_ENDLESS = {
    "lines": (OK, b"x: " + b"v" * 4096 + b"\r\n"),
    "line": (OK + b"x: ", b"v" * 4096),
    "name": (OK, b"n" * 4096),
    "interim replies": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "chunk extension": (CHUNKED + b"5;", b"x" * 2500),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nx: ", b"x-t: 1\r\n" * 512),
    "trailer": (CHUNKED + b"5\r\nhello\r\n0\r\nx: ", b"v" * 4096),
}


@pytest.mark.parametrize("name", _ENDLESS)
def test_bytes_that_are_not_part_of_a_body_are_bounded(name: str) -> None:
    start, endless = _ENDLESS[name]
    parser, error = parsed(start, *[endless] * (DEFAULT_HEAD.size // len(endless) - 1))
    assert error is None or error.limit == "reply_head"
    error = feed(parser, endless, endless)
    assert error is not None and (error.limit, parser.complete) == ("reply_head", False)


def test_bytes_of_the_read_that_completes_the_head_count_if_they_are_of_the_head() -> None:
    size = DEFAULT_HEAD.size
    _, error = parsed(OK + b"x: " + b"v" * (size - 10) + b"\r\n", b"y: " + b"v" * 1000 + b"\r\n" + FIVE)
    assert error is not None and (error.limit, "size limit" in error.message) == ("reply_head", True)
    parser, error = parsed(OK + b"content-length: %d\r\n\r\n" % (2 * size) + bytes(2 * size))
    assert (error, parser.complete, parser.buffered) == (None, True, 2 * size)
