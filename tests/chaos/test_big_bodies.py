"""Requests with large images arrive complete, and delay no other request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.chaos.dialects import GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, best_of_five, gateway_at, gateway_of_module
from tests.chaos.process import worker_process
from tests.chaos.steady import Answers, steadily
from tests.chaos.worker import TOO_LARGE, workers
from tests.support.gateway import RawClient
from tests.support.processes import PATIENCE

MEGABYTE = 1_000_000
JSON = {"content-type": "application/json"}


def pictures(route: Route, size: int, name: str) -> bytes:
    """Return a request of about ``size`` bytes with three data URLs and its own id."""
    picture = base64.b64encode(os.urandom(size // 4)).decode()
    extra: dict[str, Any] = {route.member: f"{name}-{size}"}
    return route.body(image_data=[f"data:image/png;base64,{picture}"] * 3, **extra)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), MEGABYTE):
        yield body[start : start + MEGABYTE]


async def send(gw: Gateway, route: Route, body: bytes, *, chunked: bool = False) -> str:
    """Send ``body`` and return the digest of the body that the worker received."""
    content = pieces(body) if chunked else body
    reply = await gw.client.post(route.path, content=content, headers=JSON, timeout=None)
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-digest"])


async def check_all(gw: Gateway, route: Route, single: list[bytes], together: list[bytes]) -> Answers:
    """Send bodies one by one, one of them chunked, and several at once; return the small requests."""
    url = gw.url + route.path
    async with steadily(url, interval=0.05, body=route.question()) as small:
        for body in single:
            assert await send(gw, route, body) == digest(body)
        assert await send(gw, route, single[0], chunked=True) == digest(single[0])
        arrived = await asyncio.gather(*(send(gw, route, body) for body in together))
        assert arrived == [digest(body) for body in together]
    return small


@pytest.mark.timeout(400)
@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_bodies_of_25_and_100_megabytes_arrive_intact_and_delay_no_other_request(
    gw: Gateway, route: Route
) -> None:
    """One by one, chunked, and eight at once: small requests beside them have a p99 below 0.3 s."""
    single = [pictures(route, size * MEGABYTE, "one") for size in (25, 100)]
    together = [pictures(route, 25 * MEGABYTE, f"of-eight-{number}") for number in range(8)]
    async with worker_process(route.kind, "digest") as worker:
        await gw.serve(worker)

        async def p99() -> float:
            small = await check_all(gw, route, single, together)
            assert small.failures == []
            return small.p99

        await best_of_five(p99, 0.3)


@pytest.mark.skipif(which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_body_sent_after_100_continue_arrives_intact(gw: Gateway, route: Route, tmp_path: Path) -> None:
    """curl sends ``Expect: 100-continue`` with a long body."""
    body = pictures(route, 25 * MEGABYTE, "expected")
    (tmp_path / "body").write_bytes(body)
    async with worker_process(route.kind, "digest") as worker:
        await gw.serve(worker)
        process = await asyncio.create_subprocess_exec(
            "curl", "-s", "--noproxy", "*", "-D", "-", "-o", "/dev/null", "-H", "Expect: 100-continue",
            "-H", "content-type: application/json", "--expect100-timeout", "30",
            "--data-binary", f"@{tmp_path / 'body'}", gw.url + route.path, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert out.startswith(b"HTTP/1.1 100 Continue\r\n")
        assert f"x-digest: {digest(body)}".encode() in out.lower()


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_reply_of_a_worker_that_refuses_a_body_unread_is_relayed(gw: Gateway, route: Route) -> None:
    """The worker answers and closes the connection before it has the body; that is not a broken reply."""
    async with workers(route.kind, 1) as (worker,):
        await gw.serve(worker)
        worker.body_limit = MEGABYTE
        body = pictures(route, 25 * MEGABYTE, f"refused-{route.kind}")
        reply = await gw.client.post(route.path, content=body, headers=JSON)
        assert (reply.status_code, reply.content) == (413, TOO_LARGE)
        assert await gw.states(worker) == ["ready"]
        assert (await gw.ask(route)).status_code == 200


@pytest.fixture(scope="module")
def limit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A gateway that accepts bodies of up to one mebibyte."""
    with gateway_of_module(tmp_path_factory, "--body-limit-mb", "1") as found:
        yield found


@pytest.mark.parametrize("framing", ["length", "chunked", "expect"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_body_over_a_configured_limit_is_a_413_that_no_worker_sees(
    limit: tuple[str, Path], route: Route, framing: str
) -> None:
    """The reply is JSON, and smaller requests are still served."""
    async with gateway_at(*limit) as gw, workers(route.kind, 1) as (worker,):
        await gw.serve(worker)
        status, received = await asyncio.wait_for(_too_much(gw, route, framing), PATIENCE)
        assert status == 413
        assert json.loads(received)["error"]["message"]
        assert worker.calls == []
        assert (await gw.ask(route)).status_code == 200


async def _too_much(gw: Gateway, route: Route, framing: str) -> tuple[int, bytes]:
    """Send two megabytes; return the status and the body of the reply."""
    body = route.body(filler="x" * 2 * MEGABYTE)
    if framing == "expect":
        client = await RawClient.connect(gw.port)
        lines = [f"POST {route.path} HTTP/1.1", "host: g", "expect: 100-continue"]
        client.writer.write("\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode())
        head = await client.head()
        received = await client.reader.readuntil(b"}}")
        client.leave()
        return int(head.split(b" ")[1]), received
    reply = await gw.client.post(
        route.path, content=pieces(body) if framing == "chunked" else body, headers=JSON
    )
    return reply.status_code, reply.content
