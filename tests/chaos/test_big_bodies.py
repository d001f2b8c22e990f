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
from subprocess import DEVNULL
from typing import Any

import pytest

from gateway.sim import SimConfig, SimServer
from gateway.sim.exchange import Exchange
from tests.chaos.dialects import GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, best_of_five, gateway_at, gateway_of_module
from tests.chaos.steady import steadily
from tests.chaos.worker import Call
from tests.support.gateway import RawClient
from tests.support.processes import PATIENCE, free_port, spawned

MEGABYTE = 1_000_000
JSON = {"content-type": "application/json"}
TOO_LARGE = b'{"error": {"message": "Request entity too large"}}'


def pictures(route: Route, size: int, name: str) -> bytes:
    """Return a request of about ``size`` bytes with three data URLs and its own id."""
    picture = base64.b64encode(os.urandom(size // 4)).decode()
    extra: dict[str, Any] = {route.member: f"{name}-{size}"}
    return route.body(image_data=[f"data:image/png;base64,{picture}"] * 3, **extra)


async def digest(call: Call) -> None:
    """Answer with a header that contains a digest of the request's body, and forget the body."""
    body, call.request.body = call.request.body, b""
    call.added = b"x-digest: %b\r\n" % (await asyncio.to_thread(hashlib.sha256, body)).hexdigest().encode()
    call.reply()


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), MEGABYTE):
        yield body[start : start + MEGABYTE]


async def check(gw: Gateway, route: Route, body: bytes, *, chunked: bool = False) -> None:
    """Check that the worker receives ``body`` as it is sent."""
    content = pieces(body) if chunked else body
    reply = await gw.client.post(route.path, content=content, headers=JSON, timeout=None)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-digest"] == hashlib.sha256(body).hexdigest()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_bodies_of_25_and_100_megabytes_arrive_intact_and_delay_no_other_request(
    gw: Gateway, route: Route
) -> None:
    """One by one, chunked, and eight at once: small requests beside them, to an engine in a process of its
    own, have a p99 below 0.3 s.
    """
    other = GENERATE[route is GENERATE[0]]
    beside = SimServer(other.kind, SimConfig(port=free_port()))
    command = ("gateway", "sim", other.kind, "--port", str(beside.port))
    single = [pictures(route, size * MEGABYTE, "one") for size in (25, 100)]
    together = [pictures(route, 25 * MEGABYTE, f"of-eight-{number}") for number in range(8)]
    async with gw.fleet(route.kind, 1, digest), spawned(*command, output=DEVNULL):
        await gw.site.serve(beside)

        async def p99() -> float:
            async with steadily(gw.url + other.path, interval=0.05, body=other.question()) as small:
                for body in single:
                    await check(gw, route, body)
                await check(gw, route, single[0], chunked=True)
                await asyncio.gather(*(check(gw, route, body) for body in together))
            assert small.failures == []
            return small.p99

        await best_of_five(p99, 0.3)


@pytest.mark.skipif(which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_body_sent_after_100_continue_arrives_intact(gw: Gateway, route: Route, tmp_path: Path) -> None:
    """curl sends ``Expect: 100-continue`` with a long body."""
    body = pictures(route, 25 * MEGABYTE, "expected")
    (tmp_path / "body").write_bytes(body)
    async with gw.fleet(route.kind, 1, digest):
        process = await asyncio.create_subprocess_exec(
            "curl", "-s", "--noproxy", "*", "-D", "-", "-o", "/dev/null", "-H", "Expect: 100-continue",
            "-H", "content-type: application/json", "--expect100-timeout", "30",
            "--data-binary", f"@{tmp_path / 'body'}", gw.url + route.path, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert out.startswith(b"HTTP/1.1 100 Continue\r\n")
        assert f"x-digest: {hashlib.sha256(body).hexdigest()}".encode() in out.lower()


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_reply_of_a_worker_that_refuses_a_body_unread_is_relayed(
    gw: Gateway, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker answers and closes the connection before it has the body; that is not a broken reply."""
    async with gw.fleet(route.kind, 1) as (worker,):
        accept = worker.engine.accept

        def refuse(exchange: Exchange) -> bool:
            if int(exchange.arrival.header("content-length") or 0) < MEGABYTE:
                return accept(exchange)
            exchange.send(413, TOO_LARGE)
            exchange.connection.close()
            return False

        monkeypatch.setattr(worker.engine, "accept", refuse)
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
    async with gateway_at(*limit) as gw, gw.fleet(route.kind, 1) as (worker,):
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
    content = pieces(body) if framing == "chunked" else body
    reply = await gw.client.post(route.path, content=content, headers=JSON)
    return reply.status_code, reply.content
