"""TLS towards clients: replies, disconnects, back-pressure and certificates, on real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.security import file_changes
from gateway.sim import Pace, Raw, Reply, SimConfig, SimServer
from gateway.wiring.gateway import Gateway
from tests.security.certificates import Authority
from tests.security.secured import client_of, request_of, secured
from tests.support.gateway import RawClient, Rig, arrived, eventually, limit_hits, sse, until
from tests.support.generate import KINDS, body_of, event_of
from tests.support.processes import MEBIBYTE, resident
from tests.support.served import served

#: Seconds within which a disconnect has to be acted on.
NOTICED = 0.25


@pytest.mark.parametrize("kind", KINDS)
async def test_replies_are_the_same_as_without_tls(kind: str, authority: Authority) -> None:
    """Unary and streamed, several on one connection."""
    async with SimServer(kind, SimConfig()) as sim, secured(authority, sim.url) as gateway:
        async with httpx.AsyncClient(
            base_url=gateway.url, verify=authority.client(), trust_env=False
        ) as client:
            unary = await client.post(KINDS[kind], json=body_of(kind, 5))
            stream = await client.post(KINDS[kind], json=body_of(kind, 5, True))
            health = await client.get("/health")
    assert unary.status_code == stream.status_code == health.status_code == 200
    assert len(sse(stream.content)) == 5
    assert int(unary.headers["content-length"]) == len(unary.content)


@pytest.mark.parametrize("close", [(), (("connection", "close"),)], ids=["kept", "closing"])
async def test_reply_that_is_not_read_is_truncated(
    close: tuple[tuple[str, str], ...], authority: Authority
) -> None:
    """Also the last one of a connection, which is completely written."""
    async with SimServer("sglang", SimConfig()) as sim:
        async with secured(authority, sim.url, unread_timeout_secs=0.2) as gateway:
            sim.behave(Reply(body=b'{"text":"' + b"a" * 1_000_000 + b'"}'), times=20)
            client = await client_of(gateway, authority, 4096)
            for number in range(15):
                client.request("/generate", request_of(), headers=close if number == 14 else ())

            async def cut() -> bool:
                return (await limit_hits(gateway)).get("unread") == 1

            await eventually(cut)
            client.writer.transport.abort()
            await until(lambda: not gateway.app.lifecycle.open_exchanges)


async def test_scheme_of_the_scope_is_https(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    schemes = []
    serve = Gateway.__call__

    async def noting(self: Gateway, scope: Any, *rest: Any) -> None:
        schemes.append(scope.get("scheme"))
        await serve(self, scope, *rest)

    monkeypatch.setattr(Gateway, "__call__", noting)
    async with secured(authority) as gateway:
        await gateway.client.get("/health")
    assert "https" in schemes


# -- disconnects


def _sends_close_notify(client: RawClient) -> None:
    client.writer.close()


def _sends_a_bare_fin(client: RawClient) -> None:
    with socket.socket(fileno=os.dup(client.writer.get_extra_info("socket").fileno())) as own:
        own.shutdown(socket.SHUT_WR)


def _resets(client: RawClient) -> None:
    client.leave(reset=True)


each_way = pytest.mark.parametrize("way", [_sends_close_notify, _sends_a_bare_fin, _resets])


@each_way
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_disconnect_is_aborted_within_250_ms(way: Any, stream: bool, authority: Authority) -> None:
    """Before a unary reply, and in the middle of a stream; in one of ten attempts on a busy machine."""
    async with SimServer("sglang", SimConfig()) as sim, secured(authority, sim.url) as gateway:
        for attempt in range(10):
            sim.behave(Pace(stall_after=2) if stream else Pace(prefill_base=60.0))
            client = await client_of(gateway, authority)
            client.request("/generate", request_of(9, stream))
            if stream:
                await client.head()
                for _ in range(2):
                    await client.reader.readuntil(b"\n\n")
            await arrived(attempt + 1, sim)
            started = time.monotonic()
            way(client)
            await sim.abort_called(attempt + 1)
            took = time.monotonic() - started
            client.writer.transport.abort()
            if took < NOTICED:
                break
        assert took < NOTICED
        await until(lambda: gateway.app.lifecycle.open_exchanges == 0)


@each_way
async def test_disconnect_of_a_client_that_does_not_read_is_noticed(way: Any, authority: Authority) -> None:
    stream = b"".join(event_of("sglang", number) for number in range(1, 60_000))
    async with SimServer("sglang", SimConfig()) as sim, secured(authority, sim.url) as gateway:
        sim.behave(Reply(body=stream, content_type="text/event-stream"))
        client = await client_of(gateway, authority, 4096)
        client.request("/generate", request_of(9, True))
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
        way(client)
        await sim.abort_called(1)
        await until(lambda: gateway.app.lifecycle.open_exchanges == 0)
        client.writer.transport.abort()


async def test_truncated_reply_does_not_end_with_close_notify(authority: Authority) -> None:
    """In HTTP/1.0 an orderly end of the connection would mean that the reply is complete."""
    async with SimServer("sglang", SimConfig()) as sim, secured(authority, sim.url) as gateway:
        part = b"x" * 3 * MEBIBYTE
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        sim.behave(Raw(data=head + b"%x\r\n%b\r\n" % (len(part), part)))
        client = await client_of(gateway, authority)
        sent = request_of()
        client.writer.write(b"POST /generate HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(sent), sent))
        with pytest.raises((ConnectionError, ssl.SSLError)):
            while await client.reader.read(65536):
                pass
        client.writer.transport.abort()


async def test_unread_stream_needs_one_mebibyte_at_most(authority: Authority) -> None:
    """Back-pressure reaches the worker, with TLS on both sides."""
    stream = b"".join(event_of("sglang", number) for number in range(1, 300_001))
    names = ("DYN_SSL_CERTFILE", "DYN_SSL_KEYFILE", "DYN_WORKER_CA_FILE")
    files = dict(zip(names, (*authority.files(), str(authority.file)), strict=True))
    async with (
        SimServer("sglang", SimConfig(), tls=authority.server()) as sim,
        served(sim.url, **files) as gateway,
    ):
        async with httpx.AsyncClient(trust_env=False, verify=authority.client()) as warm:
            for _ in range(50):
                await warm.post(gateway.url + "/generate", json=body_of("sglang", 3, True))
        sim.behave(Reply(body=stream, content_type="text/event-stream"))
        client = await RawClient.connect(gateway.port, 4096, authority.client())
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = resident(gateway.process.pid)
        client.request("/generate", request_of(5, True))
        await arrived(51, sim)
        steady, last = 0, -1
        while steady < 5:
            await asyncio.sleep(0.05)
            grown = resident(gateway.process.pid) - before
            steady, last = (steady + 1, last) if grown == last else (0, grown)
        # The loop reads TLS into a buffer of 256 KiB for each connection, whose bytes are not held.
        assert last <= 1.25 * MEBIBYTE, f"{last / MEBIBYTE:.2f} MiB"
        client.leave(reset=True)
        await sim.abort_called(1)


# -- certificates


async def test_required_client_certificate_must_be_trusted(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    theirs = authority.client()
    theirs.load_cert_chain(*stranger.files("client.test", stem="stranger"))
    async with secured(authority, ssl_ca_certs=str(authority.file)) as gateway:
        for context in (authority.client(), theirs):
            async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(gateway.url + "/live")
        async with httpx.AsyncClient(verify=authority.client(shows=True), trust_env=False) as client:
            assert (await client.get(gateway.url + "/live")).status_code == 200


async def test_new_certificate_is_used_without_a_restart(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Open connections go on. Files that cannot be used change nothing and are logged."""
    monkeypatch.setattr(file_changes, "INTERVAL", 0.02)
    async with secured(authority) as gateway:
        client = await client_of(gateway, authority)
        first = await _serial(gateway, authority)
        (tmp_path / "server.crt").write_text("no certificate")
        await until(lambda: "cannot be used" in caplog.text)
        assert await _serial(gateway, authority) == first
        authority.files()
        async with asyncio.timeout(10):
            while await _serial(gateway, authority) == first:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
        client.request("/live", b"", method="GET")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        client.leave(reset=True)
    assert caplog.text.count("cannot be used,") == 1


async def _serial(gateway: Rig, authority: Authority) -> str:
    client = await client_of(gateway, authority)
    serial = client.writer.get_extra_info("peercert")["serialNumber"]
    client.leave(reset=True)
    return str(serial)
