"""A reply whose worker was killed in the middle never looks complete, to any client library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from shutil import which
from typing import Any, NamedTuple

import aiohttp
import httpx
import pytest

from tests.chaos.dialects import DONE, ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Worker, begun
from tests.support.gateway import until
from tests.support.processes import PATIENCE

Headers = Mapping[str, str]


class Received(NamedTuple):
    """A client's status and body, and True in ``failed`` if its library raised an error."""

    status: int
    body: bytes
    failed: bool


async def _all(status: int, parts: AsyncIterator[bytes], *failures: type[Exception]) -> Received:
    body = b""
    try:
        async for part in parts:
            body += part
    except failures:
        return Received(status, body, True)
    return Received(status, body, False)


async def with_httpx(url: str, question: Any, headers: Headers) -> Received:
    async with (
        httpx.AsyncClient(timeout=30, trust_env=False) as client,
        client.stream("POST", url, json=question, headers=headers) as reply,
    ):
        return await _all(reply.status_code, reply.aiter_raw(), httpx.RemoteProtocolError)


async def with_aiohttp(url: str, question: Any, headers: Headers) -> Received:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=question, headers=headers) as reply,
    ):
        return await _all(reply.status, reply.content.iter_any(), aiohttp.ClientPayloadError)


async def with_curl(url: str, question: Any, headers: Headers) -> Received:
    lines = [f"{name}: {value}" for name, value in {"content-type": "application/json", **headers}.items()]
    process = await asyncio.create_subprocess_exec(
        "curl", "-sN", "--noproxy", "*", "-w", "%{stderr}%{http_code}", "-d", json.dumps(question), url,
        *(flag for line in lines for flag in ("-H", line)),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    body, status = await process.communicate()
    return Received(int(status), body, process.returncode != 0)


Client = Callable[[str, Any, Headers], Awaitable[Received]]
CLIENTS = [
    with_httpx,
    with_aiohttp,
    pytest.param(with_curl, marks=pytest.mark.skipif(which("curl") is None, reason="there is no curl here")),
]
#: Half of a reply that is too long for the gateway to buffer until it is complete.
long_begun = partial(begun, tokens=600_000)


async def killed(
    gw: Gateway, route: Route, client: Client, behave: Behaviour, *, stream: bool = False
) -> tuple[Received, Worker]:
    """Kill the worker in the middle of a reply; return what ``client`` received, and the other worker."""
    async with gw.fleet(route.kind, 1, behave) as (doomed,):
        name = {"x-request-id": f"killed-{doomed.port}"}
        running = asyncio.ensure_future(client(gw.url + route.path, route.question(stream=stream), name))
        await until(lambda: bool(doomed.calls))
        async with gw.fleet(route.kind, 1) as (other,):
            await asyncio.sleep(0.05)  # the gateway reads what was sent
            await doomed.die(reset=False)
            received = await asyncio.wait_for(running, PATIENCE)
            await gw.idle()
            line = await gw.access(name["x-request-id"])
            assert (line["worker"], line["error"]) == (doomed.url, "upstream_incomplete")
            return received, other


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_of_a_killed_worker_ends_with_an_error_and_is_not_sent_again(
    gw: Gateway, route: Route, client: Client
) -> None:
    """The client gets all events, then one error event in the engine's own form and its end marker."""
    received, other = await killed(gw, route, client, begun, stream=True)
    *events, error, done, rest = received.body.split(b"\n\n")
    assert len(events) == 5 and not any(b'"error"' in event for event in events)
    assert json.loads(error.removeprefix(b"data: "))["error"]["message"]
    assert (done + b"\n\n", rest, received.status, received.failed) == (DONE, b"", 200, False)
    assert other.calls == []


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("behave", "expected"), [(begun, (502, False)), (long_begun, (200, True))], ids=["short", "long"]
)
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_half_reply_of_a_killed_worker_is_a_502_or_an_error_of_the_library(
    gw: Gateway, route: Route, client: Client, behave: Behaviour, expected: tuple[int, bool]
) -> None:
    """A short reply was buffered; a long one was being sent, so its end is missing."""
    received, other = await killed(gw, route, client, behave)
    assert (received.status, received.failed) == expected
    assert received.failed or json.loads(received.body)["error"]["message"]
    assert other.calls == []
