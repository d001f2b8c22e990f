"""Heads that our parser accepts and another server could read differently are refused; what is before them is
served."""

from __future__ import annotations

import json

import pytest

from gateway.sim import Reply
from tests.downstream.raw import CHUNKED, OFFER, SMALL, chunk, connected, plain, reply_of
from tests.support.gateway import RawClient, arrived, generates

LINES = b"host: g\r\ncontent-type: application/json\r\n"
OFFER_LINES = "\r\n".join((*OFFER, "")).encode()
SIZED = b"content-length: %d\r\n\r\n%b" % (len(SMALL), SMALL)


def _coded(*codings: bytes, version: bytes = b"1.1", lines: bytes = b"") -> bytes:
    """Return a chunked request with one Transfer-Encoding line for each of ``codings``."""
    lines += b"".join(b"transfer-encoding: %b\r\n" % coding for coding in codings)
    head = b"POST /generate HTTP/%b\r\n%b%b\r\n" % (version, LINES, lines)
    return head + chunk(SMALL) + b"0\r\n\r\n"


ODD = {
    "coding-before-chunked": _coded(b"gzip, chunked"),
    "identity-before-chunked": _coded(b"identity, chunked"),
    "codings-on-two-lines": _coded(b"identity", b"chunked"),
    "empty-coding": _coded(b",chunked"),
    "coding-in-http-1.0": _coded(b"chunked", version=b"1.0"),
    "coding-before-chunked-and-an-offer": _coded(b"gzip, chunked", lines=OFFER_LINES),
    "no-host": b"POST /generate HTTP/1.1\r\n" + SIZED,
    "two-hosts": b"POST /generate HTTP/1.1\r\nhost: a\r\n" + LINES + SIZED,
    "http-2.0": b"POST /generate HTTP/2.0\r\n" + LINES + SIZED,
    "http-0.9": b"POST /generate\r\n\r\n",
}


async def _closed(client: RawClient) -> None:
    assert await client.reader.read(-1) == b""


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
async def test_ambiguous_head_is_refused_with_the_reason(odd: bytes) -> None:
    async with connected() as (sim, gateway, client):
        client.writer.write(odd)
        status, body = await reply_of(client)
        assert status == 400
        assert json.loads(body)["message"].startswith("Invalid HTTP request: it")
        await _closed(client)
        assert not generates(sim)


@pytest.mark.virtual_time
@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("split", [False, True], ids=["one-segment", "later"])
@pytest.mark.parametrize(
    "bad", [CHUNKED + b"2;\n{}", ODD["two-hosts"], CHUNKED + b"x" * 9], ids=["chunk", "head", "size"]
)
async def test_requests_before_an_invalid_one_are_answered_and_it_is_not(
    bad: bytes, before: int, split: bool
) -> None:
    """Its error would look like the reply to one of them."""
    async with connected() as (sim, gateway, client):
        sim.behave(Reply(delay=0.1), times=before)
        good = plain(SMALL) * before
        if split:
            client.writer.write(good + bad[:-1])
            await arrived(1, sim)
            client.writer.write(bad[-1:])
        else:
            client.writer.write(good + bad)
        for _ in range(before):
            assert await reply_of(client) == (200, b"{}")
        await _closed(client)
        assert len(generates(sim)) == before


@pytest.mark.virtual_time
async def test_request_before_a_head_over_the_limit_gets_its_own_reply() -> None:
    async with connected() as (sim, gateway, client):
        sim.behave(Reply(delay=0.2))
        client.writer.write(plain(SMALL) + b"GET /live HTTP/1.1\r\nx: ")
        await arrived(1, sim)
        client.writer.write(b"y" * 300_000)
        assert await reply_of(client) == (200, b"{}")
        await _closed(client)


async def test_spaces_around_a_header_value_are_not_part_of_it() -> None:
    async with connected() as (sim, gateway, client):
        head, body = plain(SMALL, "x-odd: \t a b \t ", "Expect: 100-continue \t").split(b"\r\n\r\n")
        client.writer.write(head + b"\r\n\r\n")
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body)
        assert (await reply_of(client))[0] == 200
        [arrival] = generates(sim)
        assert arrival.header("x-odd") == "a b"
