"""A reply whose worker was killed in the middle never looks complete, to any client library."""

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
from tests.support.processes import PATIENCE


@dataclass(frozen=True)
class Received:
    """A client's status and body, and True in ``failed`` if its library raised an error."""

    status: int
    body: bytes
    failed: bool


async def with_httpx(url: str, question: Mapping[str, Any], name: str) -> Received:
    body, status = b"", 0
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        try:
            async with client.stream("POST", url, json=question, headers={"x-request-id": name}) as reply:
                status = reply.status_code
                async for part in reply.aiter_raw():
                    body += part
        except httpx.RemoteProtocolError:
            return Received(status, body, True)
    return Received(status, body, False)


async def with_aiohttp(url: str, question: Mapping[str, Any], name: str) -> Received:
    body, status = b"", 0
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(url, json=question, headers={"x-request-id": name}) as reply:
                status = reply.status
                async for part in reply.content.iter_any():
                    body += part
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
            return Received(status, body, True)
    return Received(status, body, False)


async def with_curl(url: str, question: Mapping[str, Any], name: str) -> Received:
    lines = ["content-type: application/json", f"x-request-id: {name}"]
    headers = [flag for line in lines for flag in ("-H", line)]
    process = await asyncio.create_subprocess_exec(
        "curl", "-sN", "--noproxy", "*", "-w", "%{stderr}%{http_code}", *headers,
        "-d", json.dumps(question), url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    body, status = await process.communicate()
    return Received(int(status), body, process.returncode != 0)


Client = Callable[[str, Mapping[str, Any], str], Awaitable[Received]]
CLIENTS = [
    with_httpx,
    with_aiohttp,
    pytest.param(with_curl, marks=pytest.mark.skipif(which("curl") is None, reason="there is no curl here")),
]


async def killed(
    gw: Gateway, route: Route, client: Client, behaviour: str, *, stream: bool = False
) -> tuple[Received, Worker]:
    """Kill the worker in the middle of a reply; return what ``client`` received, and the other worker."""
    async with worker_process(route.kind, behaviour) as doomed, workers(route.kind, 1) as (other,):
        await gw.serve(doomed)
        name = f"killed-{doomed.url.rpartition(':')[2]}"
        running = asyncio.ensure_future(client(gw.url + route.path, route.question(stream=stream), name))
        await doomed.event_with("sent")
        await gw.serve(other)
        await asyncio.sleep(0.05)  # the gateway reads what was sent
        await doomed.kill()
        received = await asyncio.wait_for(running, PATIENCE)
        await gw.idle()
        line = await gw.access(name)
        assert (line["worker"], line["request_id"], line["error"]) == (
            doomed.url,
            name,
            "upstream_incomplete",
        )
        return received, other


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_of_a_killed_worker_ends_with_an_error_and_is_not_sent_again(
    gw: Gateway, route: Route, client: Client
) -> None:
    """The client gets all events, then one error event in the engine's own form and its end marker."""
    received, other = await killed(gw, route, client, "broken", stream=True)
    *events, error, done, rest = received.body.split(b"\n\n")
    assert len(events) == 5 and not any(b'"error"' in event for event in events)
    assert json.loads(error.removeprefix(b"data: "))["error"]["message"]
    assert (done + b"\n\n", rest, received.status, received.failed) == (DONE, b"", 200, False)
    assert other.calls == []


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("behaviour", "expected"), [("broken", (502, False)), ("long_broken", (200, True))], ids=["short", "long"]
)
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_half_reply_of_a_killed_worker_is_a_502_or_an_error_of_the_library(
    gw: Gateway, route: Route, client: Client, behaviour: str, expected: tuple[int, bool]
) -> None:
    """A short reply was buffered; a long one was being sent, so its end is missing."""
    received, other = await killed(gw, route, client, behaviour)
    assert (received.status, received.failed) == expected
    assert received.failed or json.loads(received.body)["error"]["message"]
    assert other.calls == []
