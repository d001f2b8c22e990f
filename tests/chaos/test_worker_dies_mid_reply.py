"""A reply whose worker was killed in the middle never looks whole, to no client library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from shutil import which
from typing import Any

import aiohttp
import httpx
import pytest

from tests.chaos.dialects import DONE, ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.process import worker_process
from tests.chaos.worker import Worker, workers


@dataclass(frozen=True)
class Seen:
    """What a client has in the end: the status, the body, and whether its library called it a failure."""

    status: int
    body: bytes
    failed: bool


async def with_httpx(url: str, question: Mapping[str, Any], name: str) -> Seen:
    body, status = b"", 0
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        try:
            async with client.stream("POST", url, json=question, headers={"x-request-id": name}) as reply:
                status = reply.status_code
                async for part in reply.aiter_raw():
                    body += part
        except httpx.RemoteProtocolError:
            return Seen(status, body, True)
    return Seen(status, body, False)


async def with_aiohttp(url: str, question: Mapping[str, Any], name: str) -> Seen:
    body, status = b"", 0
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(url, json=question, headers={"x-request-id": name}) as reply:
                status = reply.status
                async for part in reply.content.iter_any():
                    body += part
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
            return Seen(status, body, True)
    return Seen(status, body, False)


async def with_curl(url: str, question: Mapping[str, Any], name: str) -> Seen:
    lines = ["content-type: application/json", f"x-request-id: {name}"]
    headers = [flag for line in lines for flag in ("-H", line)]
    process = await asyncio.create_subprocess_exec(
        "curl", "-sN", "--noproxy", "*", "-w", "%{stderr}%{http_code}", *headers,
        "-d", json.dumps(question), url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    body, status = await process.communicate()
    return Seen(int(status), body, process.returncode != 0)


Client = Callable[[str, Mapping[str, Any], str], Awaitable[Seen]]
CLIENTS = [
    with_httpx,
    with_aiohttp,
    pytest.param(with_curl, marks=pytest.mark.skipif(which("curl") is None, reason="there is no curl here")),
]


async def killed(
    gw: Gateway, route: Route, client: Client, behaviour: str, *, stream: bool = False
) -> tuple[Seen, Worker]:
    """What ``client`` has of a reply whose worker is killed in its middle, and the worker beside it."""
    async with worker_process(route.kind, behaviour) as doomed, workers(route.kind, 1) as (other,):
        await gw.client.post("/workers", json={"url": doomed.url})
        await gw.site.ready(doomed)
        name = f"killed-{doomed.url.rpartition(':')[2]}"
        running = asyncio.ensure_future(client(gw.url + route.path, route.question(stream=stream), name))
        await doomed.event_with("sent")
        await gw.serve(other)
        await asyncio.sleep(0.05)  # what was written is on its way
        await doomed.kill()
        seen = await asyncio.wait_for(running, 10)
        await gw.idle()
        line = await gw.access(name)
        assert (line["worker"], line["request_id"], line["error"]) == (
            doomed.url,
            name,
            "upstream_incomplete",
        )
        return seen, other


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_of_a_killed_worker_ends_with_an_error_and_is_not_sent_again(
    gw: Gateway, route: Route, client: Client
) -> None:
    """All that came, then one error event in the engine's own form and its end marker."""
    seen, other = await killed(gw, route, client, "broken", stream=True)
    *events, error, done, rest = seen.body.split(b"\n\n")
    assert len(events) == 5 and not any(b'"error"' in event for event in events)
    assert json.loads(error.removeprefix(b"data: "))["error"]["message"]
    assert (done + b"\n\n", rest, seen.status, seen.failed) == (DONE, b"", 200, False)
    assert other.calls == []


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_half_reply_of_a_killed_worker_is_a_502_and_is_not_sent_again(
    gw: Gateway, route: Route, client: Client
) -> None:
    seen, other = await killed(gw, route, client, "broken")
    assert (seen.status, seen.failed) == (502, False)
    assert json.loads(seen.body)["error"]["message"]
    assert other.calls == []


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_long_half_reply_of_a_killed_worker_is_an_error_of_the_library(
    gw: Gateway, route: Route, client: Client
) -> None:
    """It was on its way as it broke; the length that was announced, or the last chunk, is missing."""
    seen, other = await killed(gw, route, client, "long_broken")
    assert (seen.status, seen.failed) == (200, True)
    assert other.calls == []
