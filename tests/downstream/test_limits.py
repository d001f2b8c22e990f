"""Limits on client connections and on the time a client takes, through a gateway on raw sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest

from gateway.downstream.deadlines import Phase, StallTimer
from gateway.downstream.limits import RESERVED_CONNECTIONS, ClientLimits
from gateway.sim import SimConfig, SimServer
from tests.downstream.raw import SMALL, connected, plain, raw_client, reply_of
from tests.support.gateway import RawClient, Rig, generates, limit_hits, rig
from tests.support.generate import JSON, KINDS

T = TypeVar("T")

#: Three lines, with a length behind it.
HEAD = b"POST /generate HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n"


async def rest_of(client: RawClient) -> bytes:
    """Return all bytes until the gateway closes the connection."""
    return await client.reader.read(-1)


async def trickle(client: RawClient, data: Iterable[int], pause: float, reply: Coroutine[Any, Any, T]) -> T:
    """Send ``data`` byte by byte, ``pause`` seconds apart, until ``reply`` was received; return that."""
    received = asyncio.ensure_future(reply)
    for byte in data:
        client.writer.write(bytes([byte]))
        await asyncio.sleep(pause)
        if received.done():
            break
    return await received


@pytest.mark.parametrize("phase", [Phase.REPLY, Phase.UNREAD])
def test_phase_without_a_limit_never_expires(phase: Phase) -> None:
    """All others: through a gateway below, and in test_unread.py."""
    timer = StallTimer(ClientLimits(unread_seconds=None), 100.0)
    assert not any(timer.expired(phase, 1, 100.0 + hours * 3600) for hours in range(3))


@pytest.mark.parametrize(
    ("setting", "lines", "limit", "why"),
    [
        ({"header_limit_lines": 20}, 17, None, ""),
        ({"header_limit_lines": 20}, 18, "lines", "has too many lines"),
        ({"header_limit_kb": 4}, 100, None, ""),
        ({"header_limit_kb": 4}, 200, "size", "is too large"),
    ],
)
async def test_head_may_have_as_many_lines_and_bytes_as_the_limits(
    setting: dict[str, int], lines: int, limit: str | None, why: str
) -> None:
    async with connected(**setting) as (sim, gateway, client):
        filler = b"".join(b"x-%03d: %b\r\n" % (number, b"y" * 16) for number in range(lines))
        client.writer.write(HEAD + b"content-length: %d\r\n%b\r\n%b" % (len(SMALL), filler, SMALL))
        status, body = await reply_of(client)
        assert status == (431 if limit else 200)
        if limit:
            assert json.loads(body)["message"] == f"The head of the request {why}"
            assert await rest_of(client) == b""
            assert not generates(sim) and await limit_hits(gateway) == {f"request_head_{limit}": 1}


@pytest.mark.virtual_time
async def test_head_that_trickles_in_is_a_408_and_a_close() -> None:
    async with rig(header_timeout_secs=5) as gateway, raw_client(gateway) as client:
        started = time.monotonic()
        head = b"GET /live HTTP/1.1\r\nx-slow: " + b"y" * 1000
        answer = await trickle(client, head, 0.5, rest_of(client))
        assert 5 <= time.monotonic() - started < 10
        assert answer.startswith(b"HTTP/1.1 408 ") and b"did not arrive in time" in answer
        assert b"\r\nconnection: close\r\n" in answer.lower()
        assert await limit_hits(gateway) == {"request_head_time": 1}


@pytest.mark.virtual_time
async def test_head_after_a_request_that_is_served_has_its_time_from_the_end_of_that() -> None:
    async with SimServer("sglang", SimConfig(token_delay=1.0)) as sim:
        async with rig(sim.url, header_timeout_secs=1) as gateway, raw_client(gateway) as client:
            client.request("/generate", SMALL)
            client.writer.write(b"GET /live HTTP/1.1\r\n")
            assert (await reply_of(client))[0] == 200
            client.writer.write(b"host: g\r\n\r\n")
            assert (await reply_of(client))[0] == 200


@pytest.mark.virtual_time
@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_body_that_stops_arriving_is_a_408_in_the_dialect_and_a_close(kind: str, escaped: bool) -> None:
    path = KINDS[kind].replace("gen", "%67en") if escaped else KINDS[kind]
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, body_timeout_secs=2) as gateway:
        async with raw_client(gateway) as client:
            client.writer.write(
                b"POST %b HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{" % path.encode()
            )
            status, body = await reply_of(client)
            message = "the body of the request stopped arriving, or arrives too slowly"
            assert (status, json.loads(body)["error"]["message"]) == (408, message)
            assert await rest_of(client) == b""
            await asyncio.sleep(1)  # the client does not close its side, and is not timed any more
        assert not generates(sim) and await limit_hits(gateway) == {"body_time": 1}
        assert gateway.app.lifecycle.open_exchanges == 0


@pytest.mark.virtual_time
async def test_body_that_arrives_at_the_minimum_rate_may_take_any_time() -> None:
    async with connected(body_timeout_secs=2, body_min_rate=5) as (sim, gateway, client):
        started = time.monotonic()
        client.writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(SMALL))
        for start in range(0, len(SMALL), 10):
            client.writer.write(SMALL[start : start + 10])
            await asyncio.sleep(1.5)
        assert (await reply_of(client))[0] == 200
        assert time.monotonic() - started > 10


@pytest.mark.virtual_time
@pytest.mark.parametrize("rate", [10_000, 0])
@pytest.mark.parametrize("path", ["/generate", "/workers"])
async def test_body_that_trickles_in_is_a_408_unless_any_rate_is_allowed(path: str, rate: int) -> None:
    async with connected(body_timeout_secs=1, body_min_rate=rate) as (sim, gateway, client):
        client.writer.write(plain(SMALL, path=path).removesuffix(SMALL))
        status, body = await trickle(client, SMALL, 0.05, reply_of(client))
        assert (status == 408, b"too slowly" in body) == (rate > 0, rate > 0)
        assert await limit_hits(gateway) == ({"body_time": 1} if rate else {})
        if rate:
            assert await rest_of(client) == b""
            assert not generates(sim)


@pytest.mark.virtual_time
async def test_rest_of_a_refused_body_that_stops_arriving_is_a_close_without_another_reply() -> None:
    async with rig(body_timeout_secs=2) as gateway, raw_client(gateway) as client:
        client.writer.write(b"POST /nothing HTTP/1.1\r\nhost: g\r\ncontent-length: 100\r\n\r\n{")
        assert (await reply_of(client))[0] == 404
        assert await rest_of(client) == b""


@pytest.mark.virtual_time
async def test_idle_connection_is_closed_and_one_with_requests_stays_open() -> None:
    async with rig(keep_alive_timeout_secs=4) as gateway:
        async with raw_client(gateway) as idle, raw_client(gateway) as busy:
            started = time.monotonic()
            closed = asyncio.ensure_future(rest_of(idle))
            while not closed.done():
                busy.request("/live", b"", method="GET")
                assert (await reply_of(busy))[0] == 200
                await asyncio.sleep(0.5)
            assert closed.result() == b"" and 4 <= time.monotonic() - started < 7
            assert (await limit_hits(gateway))["keep_alive"] >= 1


@pytest.mark.parametrize("code", [503, 529])
@pytest.mark.parametrize("path", ["/generate", "/gener%61te"])
async def test_connection_over_the_limit_may_use_routes_that_need_no_worker(path: str, code: int) -> None:
    limits = {"max_connections": 2, "overload_status_code": code}
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **limits) as gateway:
        async with raw_client(gateway) as one, raw_client(gateway) as two:  # and the one of the rig
            for client in (one, two):
                client.request("/live", b"", method="GET")
                await reply_of(client)
            async with raw_client(gateway) as third, raw_client(gateway) as fourth:
                third.request(path, SMALL)
                head, _, body = (await rest_of(third)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 %d " % code)
                assert b"\r\nretry-after: 1" in head.lower() and b"\r\nconnection: close" in head.lower()
                assert "its limit of connections" in json.loads(body)["error"]["message"]
                fourth.request("/health", b"", method="GET")
                assert (await rest_of(fourth)).startswith(b"HTTP/1.1 200 ")
            assert not generates(sim)
            assert (await limit_hits(gateway))["sockets"] == 1
        assert (await gateway.client.post("/generate", content=SMALL, headers=JSON)).status_code == 200


@pytest.mark.parametrize("code", [503, 529])
async def test_connection_beyond_the_reserve_gets_an_overload_reply_and_is_closed(code: int) -> None:
    async with rig(max_connections=1, overload_status_code=code) as gateway:
        clients = [await RawClient.connect(gateway.port) for _ in range(RESERVED_CONNECTIONS + 5)]
        refused = [await rest_of(client) for client in clients[-2:]]
        assert all(each.startswith(b"HTTP/1.1 %d " % code) for each in refused)
        assert json.loads(refused[0].partition(b"\r\n\r\n")[2])["code"] == code
        assert all(b"\r\nretry-after: 1\r\n" in each for each in refused)
        for client in clients:
            client.writer.transport.abort()


async def _refused(gateway: Rig, sizes: Sequence[int]) -> list[bytes]:
    """Take all connections there may be; return what further ones read that send ``sizes`` bytes first."""
    async with AsyncExitStack() as stack:
        for _ in range(RESERVED_CONNECTIONS + 1):
            client = await stack.enter_async_context(raw_client(gateway))
            client.request("/live", b"", method="GET")
            assert (await reply_of(client))[0] == 200
        late = [await stack.enter_async_context(raw_client(gateway)) for _ in sizes]
        for client, size in zip(late, sizes, strict=True):
            await asyncio.sleep(0.01)  # the refusal is there before the request
            client.writer.write(plain(bytes(size)))
            await client.writer.drain()
        return [await rest_of(client) for client in late]


async def test_refused_connection_gets_the_reason_whatever_it_is_sending() -> None:
    """A socket that is closed with unread bytes is reset, and the reply to it is lost."""
    async with rig(max_connections=1) as gateway:
        replies = await _refused(gateway, [0, 1, 20_000, 4_000_000] * 5)
        assert all(reply.startswith(b"HTTP/1.1 503 ") for reply in replies)
        assert (await limit_hits(gateway))["sockets"] == 20


async def _is_closed(client: RawClient) -> bool:
    """Return True if the gateway has closed the connection both ways: the second write is an error then."""
    for _ in range(2):
        client.writer.write(b"x")
        await asyncio.sleep(0.1)
    return client.writer.transport.is_closing()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("files", "stays"), [(None, True), (10_000, True), (3, False)])
async def test_refused_connection_lasts_half_a_second_or_none_where_files_are_short(
    files: int | None, stays: bool
) -> None:
    async with rig(max_connections=1) as gateway, AsyncExitStack() as stack:
        if files is not None:
            gateway.app.limit_connections(1, 10, files)
        clients = [await stack.enter_async_context(raw_client(gateway)) for _ in range(RESERVED_CONNECTIONS)]
        async with raw_client(gateway):
            late = [await stack.enter_async_context(raw_client(gateway)) for _ in range(40)]
            assert all([(await rest_of(client)).startswith(b"HTTP/1.1 503 ") for client in late])
            assert await _is_closed(late[0]) != stays
        await asyncio.sleep(0.05)
        async with raw_client(gateway) as probe:  # those that were refused take no place
            probe.request("/live", b"", method="GET")
            assert (await reply_of(probe))[0] == 200
        await asyncio.sleep(0.4)
        assert await _is_closed(late[1]) and not clients[0].reader.at_eof()
