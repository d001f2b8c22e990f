"""A reply on any route has one Server, one Date and no hop-by-hop header of the worker."""

from __future__ import annotations

import aiohttp
import pytest

from tests.chaos.dialects import ROUTES, SGLANG, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Call, good, wants_stream, workers
from tests.support.gateway import RawClient

#: Headers that a worker's own server adds to its replies.
ADDED = (
    (b"Server", b"uvicorn"),
    (b"Date", b"Sun, 06 Nov 1994 08:49:37 GMT"),
    (b"Connection", b"keep-alive, X-Hop"),
    (b"Keep-Alive", b"timeout=5"),
    (b"X-Hop", b"named by Connection"),
    (b"X-Worker", b"a"),
)
HOPS = (b"keep-alive", b"x-hop", b"upgrade", b"te", b"trailer", b"proxy-connection")
JSON = {"content-type": "application/json"}


async def decorated(call: Call) -> None:
    """Answer with the headers of an ordinary server."""
    if not wants_stream(call):
        return call.reply(None, 200, *ADDED)
    call.stream(*ADDED)
    call.finish()


async def failing(call: Call) -> None:
    """Answer an error with the same headers."""
    call.reply(b'{"error": {"message": "no"}}', 500, *ADDED)


async def raw_lines(gw: Gateway, path: str, body: bytes, method: str = "POST") -> list[tuple[bytes, bytes]]:
    """Return the header lines of a reply as they are on the wire."""
    client = await RawClient.connect(gw.port)
    client.request(path, body, method=method)
    head = await client.head()
    client.leave()
    _, *lines = head.rstrip().split(b"\r\n")
    return [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]


def check(lines: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in lines]
    assert names.count(b"server") <= 1 and names.count(b"date") == 1
    assert (b"date", b"Sun, 06 Nov 1994 08:49:37 GMT") not in lines
    assert not set(HOPS) & set(names)
    assert names.count(b"content-length") + names.count(b"transfer-encoding") == 1
    assert names.count(b"content-type") == 1


@pytest.mark.parametrize("behave", [decorated, failing])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_reply_has_one_server_one_date_and_nothing_of_one_hop(
    gw: Gateway, route: Route, stream: bool, behave: Behaviour
) -> None:
    async with workers(route.kind, 1, behave) as (worker,):
        await gw.serve(worker)
        lines = await raw_lines(gw, route.path, route.body(stream=stream))
        check(lines)
        assert (b"x-worker", b"a") in lines


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_strict_parser_takes_the_reply(gw: Gateway, route: Route, stream: bool) -> None:
    """aiohttp refuses a reply with duplicates of some headers before it reads the body."""
    async with workers(route.kind, 1, decorated) as (worker,), aiohttp.ClientSession() as session:
        await gw.serve(worker)
        async with session.post(gw.url + route.path, json=route.question(stream=stream)) as reply:
            assert reply.status == 200
            assert reply.headers["X-Worker"] == "a"
            assert await reply.read()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", b""),
        ("GET", "/ready", b""),
        ("GET", "/workers", b""),
        ("GET", "/metrics", b""),
        ("GET", "/v1/models", b""),
        ("GET", "/server_info", b""),
        ("POST", "/flush_cache", b""),
        ("POST", "/abort_request", b'{"rid": "nobody"}'),
        ("POST", "/generate", b"{"),
        ("GET", "/generate", b""),
        ("GET", "/nowhere", b""),
    ],
)
async def test_replies_of_all_other_routes_are_as_clean(
    gw: Gateway, method: str, path: str, body: bytes
) -> None:
    """Replies that the gateway makes itself, and replies with a worker's part."""
    async with workers("sglang", 1, good) as (worker,):
        worker.added = ADDED
        await gw.serve(worker)
        check(await raw_lines(gw, path, body, method))


async def test_reply_to_a_request_with_connection_close_has_that_header_once(gw: Gateway) -> None:
    async with workers("sglang", 1, decorated) as (worker,):
        await gw.serve(worker)
        client = await RawClient.connect(gw.port)
        body = SGLANG.body()
        client.request("/generate", body, headers=(("connection", "close"),))
        head = (await client.head()).lower()
        client.leave()
        assert head.count(b"\r\nconnection: close\r\n") == 1
        assert b"keep-alive" not in head
