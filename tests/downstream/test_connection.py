"""Client connections on real sockets: keep-alive, pipelining, HTTP/1.0, HEAD, invalid bytes."""

from __future__ import annotations

import asyncio
import json
from unittest.mock import Mock

import pytest

from gateway.downstream.request_body import RequestBody
from gateway.fleet.registry import Fleet
from gateway.sim import SimConfig, SimServer
from gateway.wiring.gateway import Gateway
from tests.downstream.raw import CHUNKED, SMALL, connected, plain, raw_client, reply_of
from tests.support.gateway import RawClient, generates, rig, until
from tests.support.generate import body_of
from tests.support.processes import PATIENCE


async def test_connection_stays_open_for_any_number_of_requests() -> None:
    async with connected() as (sim, gateway, client):
        for _ in range(3):
            for path, method, body, status in (
                ("/generate?x=1", "PUT", SMALL, 200),
                ("/health", "GET", b"", 200),
                ("/nothing", "GET", b"", 404),
                ("/generate", "POST", b"{", 400),
            ):
                client.request(path, body, method=method)
                assert (await reply_of(client))[0] == status, path


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], "Invalid HTTP request"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "Invalid HTTP request: it has no Host, or more than one"),
        ([CHUNKED + b"ZZ\r\n"], "Invalid HTTP request"),
        ([CHUNKED, b"ZZ\r\n"], "Invalid HTTP request"),
    ],
    ids=["tls", "no-host", "chunk", "later-chunk"],
)
async def test_bytes_that_are_not_a_request_get_a_400_with_the_reason_and_a_close(
    pieces: list[bytes], message: str
) -> None:
    async with connected() as (sim, gateway, client):
        for number, piece in enumerate(pieces):
            await until(lambda number=number: gateway.app.lifecycle.open_exchanges == number)  # type: ignore[misc]
            client.writer.write(piece)
        status, body = await reply_of(client)
        assert status == 400
        assert json.loads(body) == {"message": message, "type": "Bad Request", "code": 400}
        assert await client.reader.read(-1) == b""
        assert not generates(sim)
        await until(lambda: gateway.app.lifecycle.open_exchanges == 0)


@pytest.mark.parametrize("where", [(Fleet, "models"), (Gateway, "__call__")], ids=["route", "application"])
async def test_fault_of_the_control_plane_is_a_500_without_details(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def faulty(*_: object) -> None:
        raise RuntimeError("a secret")

    async with rig() as gateway:
        with monkeypatch.context() as patch:
            patch.setattr(*where, faulty)
            reply = await gateway.client.get("/v1/models")
            async with raw_client(gateway) as client:
                client.writer.write(b"HEAD /v1/models HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n")
                head, _, rest = (await client.reader.read(-1)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 500 ") and b"content-length: " in head and not rest
        error = {"message": "internal error of the gateway", "type": "Internal Server Error", "code": 500}
        assert (reply.status_code, reply.json()) == (500, error)
        assert "a secret" in caplog.text
        assert (await gateway.client.get("/v1/models")).status_code == 200


@pytest.mark.pure_only(reason="replaces methods of a compiled class")
@pytest.mark.parametrize(("fault", "status"), [(MemoryError(), 503), (RuntimeError("a secret"), 500)])
@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/generate", "append"),
        ("/generate", "_take"),
        ("/inference/v1/generate", "append"),
        ("/workers", "append"),
    ],
)
async def test_fault_of_the_gateway_while_a_body_arrives_is_no_mistake_of_the_client(
    fault: Exception, status: int, where: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected() as (sim, gateway, client):
        async with raw_client(gateway) as other:
            head, body = plain(SMALL, path=path)[: -len(SMALL)], SMALL
            client.writer.write(head)
            if path != "/workers":
                await until(lambda: gateway.app.lifecycle.open_exchanges == 1)
            with monkeypatch.context() as patch:
                patch.setattr(RequestBody, where, Mock(side_effect=fault))
                client.writer.write(body)
                reply = await client.head()
            assert reply.startswith(b"HTTP/1.1 %d " % status)
            assert (b"\r\nretry-after: 1\r\n" in reply) == (status == 503)
            rest = await client.reader.read(-1) if where == "append" else b""
            assert b"HTTP/1.1" not in rest and b"a secret" not in rest
            await until(lambda: gateway.app.lifecycle.open_exchanges == 0)
            other.request("/generate", SMALL)
            assert (await reply_of(other))[0] == 200
        assert len(generates(sim)) == 1


async def test_stream_to_an_http_1_0_client_ends_with_the_connection() -> None:
    """HTTP/1.0 has no chunks."""
    async with connected() as (sim, gateway, client):
        sent = json.dumps(body_of("sglang", 2, True)).encode()
        client.writer.write(b"POST /generate HTTP/1.0\r\ncontent-type: application/json\r\n")
        client.writer.write(b"content-length: %d\r\n\r\n%b" % (len(sent), sent))
        answer = await client.reader.read(-1)
        client.leave()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["/health", "/engine_metrics", "/workers/events", "/nothing"])
async def test_reply_to_a_head_request_has_no_body(path: str) -> None:
    """Also where a GET starts a stream without an end; the next reply follows at once."""
    async with SimServer("sglang", SimConfig(enable_metrics=True)) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        client.request(path, b"", method="HEAD")
        client.request("/live", b"", method="GET")
        head = await client.head()
        assert b"content-length" in head or b"transfer-encoding" in head
        assert (await asyncio.wait_for(client.head(), PATIENCE)).startswith(b"HTTP/1.1 200 ")
        client.leave()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"POST /generate HTTP/1.1\r\nconnection: close", b"413"),
        (b"POST /nothing HTTP/1.1\r\nconnection: close", b"404"),
        (b"POST /generate HTTP/9.1", b"400"),
    ],
    ids=["too-large", "no-route", "invalid"],
)
async def test_client_that_is_still_sending_gets_its_last_reply_and_no_reset(
    line: bytes, status: bytes
) -> None:
    """Many clients read only after they sent everything, and a reset would drop the reply."""
    async with rig(body_limit_mb=1) as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(line + b"\r\nhost: g\r\ncontent-length: 33554432\r\n\r\n")
        for _ in range(512):
            client.writer.write(bytes(65536))
            await client.writer.drain()
        assert (await client.reader.read(-1)).startswith(b"HTTP/1.1 %b " % status)
        client.leave()


async def test_connection_close_is_honoured_and_in_the_reply() -> None:
    async with connected() as (sim, gateway, client):
        client.request("/generate", SMALL, headers=(("connection", "close"),))
        answer = await client.reader.read(-1)
        assert answer.lower().count(b"\r\nconnection: close\r\n") == 1
