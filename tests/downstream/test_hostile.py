"""Clients, workers and machines that misbehave, at connections on real sockets: nothing is lost or kept."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from typing import Any

import pytest

from gateway.downstream.connection import ClientConnection
from gateway.downstream.hangup import HANGUP_INTERVAL
from gateway.fleet.states import WorkerState
from gateway.sim import Pace, Raw, SimConfig, SimServer
from gateway.upstream.connection import Connection
from tests.downstream.raw import SMALL, chunk, connected, plain, raw_client, reply_of
from tests.support.gateway import arrived, generates, rig, until
from tests.support.generate import JSON, body_of
from tests.support.processes import PATIENCE

STREAM = json.dumps(body_of("sglang", 4000, True, rid="s")).encode()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/nothing", 404),
        ("DELETE", "/generate", 405),
        ("POST", "/generate", 413),
        ("POST", "/%67enerate", 413),
        ("POST", "/abort_request", 413),
    ],
)
@pytest.mark.parametrize("ahead", [0, 16], ids=["head-first", "body-with-head"])
@pytest.mark.parametrize("framing", ["content-length: 8388608", "transfer-encoding: chunked"])
async def test_request_after_one_that_was_refused_early_is_served(
    method: str, path: str, status: int, framing: str, ahead: int
) -> None:
    """The refused body is read to its end from a client that uploads before it reads."""
    async with connected(body_limit_mb=1) as (sim, gateway, client):
        chunked = framing.endswith("chunked")
        piece = chunk(b"a" * 65536) if chunked else b"a" * 65536
        head = f"{method} {path} HTTP/1.1\r\nhost: g\r\n{framing}\r\n\r\n".encode()
        client.writer.write(head + piece * ahead)
        async with asyncio.timeout(PATIENCE):
            for _ in range(128 - ahead):
                client.writer.write(piece)
                await client.writer.drain()
        client.writer.write(b"0\r\n\r\n" if chunked else b"")
        assert (await reply_of(client))[0] == status
        client.request("/generate", SMALL)
        assert (await reply_of(client))[0] == 200


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL], ids=errno.errorcode.get)
async def test_shortage_of_sockets_is_reported_and_no_worker_is_blamed(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = asyncio.get_running_loop()
    connect = loop.create_connection
    refused = 0

    async def full(factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        nonlocal refused
        if port != sim.port:
            return await connect(factory, host, port, **options)
        refused += 1
        raise OSError(number, "no socket left")

    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        [worker] = gateway.app.fleet.workers
        with monkeypatch.context() as patch:
            patch.setattr(loop, "create_connection", full)
            while (idle := worker.pool.take()) is not None:
                idle.close()
            for _ in range(8):
                reply = await gateway.client.post("/generate", content=SMALL, headers=JSON)
                assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
                assert "no socket left" in reply.text
            asked = refused
            await until(lambda: refused >= asked + 3)  # probes need sockets as well
            assert worker.state is WorkerState.READY
        assert (await gateway.client.post("/generate", content=SMALL, headers=JSON)).status_code == 200


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("ahead", ["request", "requests", "body"])
async def test_disconnect_of_a_client_with_pipelined_requests_frees_the_worker(
    ahead: str, reset: bool
) -> None:
    """Also if so much is pipelined that its socket is not read any more: HANGUP_INTERVAL bounds the delay."""
    assert HANGUP_INTERVAL < 0.25
    small = plain(SMALL)
    more = {"request": small, "requests": small * 16, "body": plain(b" " * 200_000 + SMALL)}[ahead]
    async with SimServer("sglang", SimConfig(unary_disconnect_poll=0.0)) as sim, rig(sim.url) as gateway:
        sim.behave(Pace(prefill_base=60.0))
        async with raw_client(gateway) as client:
            client.writer.write(small + more)
            await client.writer.drain()
            await arrived(1, sim)
            await asyncio.sleep(1.5 * HANGUP_INTERVAL)  # it is asked for the hang-up more than once
            client.leave(reset=reset)
            await sim.client_gone(1)
        await until(lambda: gateway.app.lifecycle.open_exchanges == 0)
        assert len(generates(sim)) == 1


async def test_client_that_stops_reading_and_then_half_closes_frees_the_worker() -> None:
    config = SimConfig(max_model_len=2**20, merge_unread=False)
    body = json.dumps(body_of("sglang", 1_000_000, True, rid="s")).encode()
    async with SimServer("sglang", config) as sim, rig(sim.url) as gateway, raw_client(gateway) as client:
        client.request("/generate", body)
        await client.head()
        transport: Any = client.writer.transport
        transport.pause_reading()
        [arrival] = generates(sim)
        seen, same = 0, 0
        while same < 20:  # until all buffers on the way are full
            assert (await gateway.client.get("/live")).status_code == 200
            seen, same = (arrival.events, same + 1) if arrival.events == seen else (arrival.events, 0)
        client.writer.write_eof()
        await sim.client_gone(1)
        await until(lambda: gateway.app.lifecycle.open_exchanges == 0)
        assert all(worker.in_flight == 0 for worker in gateway.app.fleet.workers)


async def test_truncated_reply_to_http_1_0_ends_with_a_reset() -> None:
    """Without a length and without chunks, a FIN would mean that the reply is complete."""
    part = chunk(b'{"text":"' + b"a" * 3_000_000)
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" + part
    async with connected() as (sim, gateway, client):
        sim.behave(Raw(data=reply))
        client.writer.write(plain(SMALL).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(-1), PATIENCE)


@pytest.mark.parametrize(
    ("target", "status"),
    [("/gener%61te", 200), ("/generate?a=/b", 200), ("HTTP://gw:80/generate", 200), ("https://gw/no", 404)],
)
async def test_target_leads_to_the_route_of_its_path(target: str, status: int) -> None:
    async with connected() as (sim, gateway, client):
        client.writer.write(plain(SMALL, path=target))
        assert (await reply_of(client))[0] == status
        assert len(generates(sim)) == (status == 200)


async def test_head_of_a_stream_is_sent_without_a_complete_event() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    async with connected() as (sim, gateway, client):
        sim.behave(Raw(data=head + chunk(b'data: {"text"'), close=False))
        client.request("/generate", STREAM)
        assert (await asyncio.wait_for(client.head(), PATIENCE)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("owner", [ClientConnection, Connection])
async def test_tcp_keepalive_is_enabled_for_clients_and_workers(
    owner: type[ClientConnection] | type[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, options = owner.connection_made, list[int]()

    def note(self: Any, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        sock = transport.get_extra_info("socket")
        options.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    monkeypatch.setattr(owner, "connection_made", note)
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        assert (await gateway.client.post("/generate", content=SMALL, headers=JSON)).status_code == 200
    assert options and all(options)
