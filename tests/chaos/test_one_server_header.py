"""A reply on any route has one Server, one Date and no hop-by-hop header of the worker."""

from __future__ import annotations

import aiohttp
import pytest

from tests.chaos.dialects import ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Call, good
from tests.support.gateway import RawClient

#: What a worker's own server adds to each reply, and a second Server and Date.
ADDED = (
    b"Server: another\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: keep-alive, X-Hop\r\n"
    b"Keep-Alive: timeout=5\r\nX-Hop: named by Connection\r\nX-Worker: a\r\n"
)
HOPS = {b"keep-alive", b"x-hop", b"upgrade", b"te", b"trailer", b"proxy-connection"}


async def decorated(call: Call) -> None:
    call.added = ADDED
    await good(call)


async def failing(call: Call) -> None:
    call.added = ADDED
    call.reply(b'{"error": {"message": "no"}}', 500)


async def check(
    gw: Gateway, path: str, body: bytes, method: str = "POST", **headers: str
) -> list[tuple[bytes, bytes]]:
    """Check the header lines of a reply as they are on the wire, and return them."""
    client = await RawClient.connect(gw.port)
    client.request(path, body, method=method, headers=tuple(headers.items()))
    head = await client.head()
    client.leave()
    _, *rows = head.rstrip().split(b"\r\n")
    lines = [(name.lower(), value.strip()) for name, _, value in (row.partition(b":") for row in rows)]
    names = [name for name, _ in lines]
    assert names.count(b"server") <= 1 and names.count(b"date") == 1
    assert (b"date", b"Sun, 06 Nov 1994 08:49:37 GMT") not in lines
    assert not HOPS & set(names)
    assert names.count(b"content-length") + names.count(b"transfer-encoding") == 1
    assert names.count(b"content-type") == (path != "/flush_cache")  # whose reply has no body
    return lines


@pytest.mark.parametrize("behave", [decorated, failing])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_reply_has_one_server_one_date_and_nothing_of_one_hop(
    gw: Gateway, route: Route, stream: bool, behave: Behaviour
) -> None:
    """Also for aiohttp, which refuses a reply with duplicates of some headers before it reads the body, and
    on a connection that the client wants closed.
    """
    async with gw.fleet(route.kind, 1, behave), aiohttp.ClientSession() as session:
        assert (b"x-worker", b"a") in await check(gw, route.path, route.body(stream=stream))
        lines = await check(gw, route.path, route.body(stream=stream), connection="close")
        assert [value for name, value in lines if name == b"connection"] == [b"close"]
        async with session.post(gw.url + route.path, json=route.question(stream=stream)) as reply:
            assert reply.status == (200 if behave is decorated else 500)
            assert await reply.read()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        *(("GET", path, b"") for path in ("/health", "/ready", "/workers", "/metrics", "/v1/models")),
        *(("GET", path, b"") for path in ("/server_info", "/generate", "/nowhere")),
        ("POST", "/flush_cache", b""),
        ("POST", "/abort_request", b'{"rid": "nobody"}'),
        ("POST", "/generate", b"{"),
    ],
)
async def test_replies_of_all_other_routes_are_as_clean(
    gw: Gateway, method: str, path: str, body: bytes
) -> None:
    """Replies that the gateway makes itself, and replies with a worker's part."""
    async with gw.fleet("sglang", 1):
        await check(gw, path, body, method)
