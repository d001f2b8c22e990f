"""TLS connections whose handshake is not complete."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from uvicorn.server import ServerState

from gateway.downstream import tls
from gateway.downstream.limits import OVER_LIMIT_IDLE_SECONDS, RESERVED_CONNECTIONS, ClientLimits
from gateway.downstream.tls import Acceptor
from tests.security.certificates import Authority
from tests.security.secured import client_of, secured
from tests.support.gateway import RawClient, Rig, until
from tests.support.processes import PATIENCE


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def _silent(gateway: Rig, count: int) -> list[RawClient]:
    """Open connections that never begin a handshake."""
    return [await RawClient.connect(gateway.port) for _ in range(count)]


async def _live(gateway: Rig, authority: Authority) -> bytes:
    client = await client_of(gateway, authority)
    client.request("/live", b"", method="GET")
    head = await client.head()
    client.leave()
    return head[:12]


async def _hits(gateway: Rig) -> str:
    scrape = (await gateway.client.get("/metrics")).text
    return next((line for line in scrape.splitlines() if 'limit="sockets"' in line), "")


@pytest.mark.virtual_time
async def test_handshake_has_the_time_limit_of_a_head(authority: Authority) -> None:
    """Other clients are served meanwhile."""
    async with secured(authority, header_timeout_secs=5) as gateway:
        started = time.monotonic()
        [silent] = await _silent(gateway, 1)
        assert await _live(gateway, authority) == b"HTTP/1.1 200"
        assert await silent.reader.read() == b""
        assert time.monotonic() - started == pytest.approx(5, abs=0.1)
        silent.leave()


async def test_connection_over_the_limit_is_closed_before_its_handshake(authority: Authority) -> None:
    """It is counted; clients that were connected before are served."""
    async with secured(authority, max_connections=2) as gateway:
        kept = await client_of(gateway, authority)
        silent = await _silent(gateway, RESERVED_CONNECTIONS + 2)
        assert await silent[-1].reader.read() == b""
        kept.request("/live", b"", method="GET")
        assert (await kept.head()).startswith(b"HTTP/1.1 200")
        for client in silent:
            client.leave(reset=True)
        hits = [""]

        async def counted() -> None:
            while not hits[0]:
                try:
                    hits[0] = await _hits(gateway)
                except httpx.TransportError:
                    await asyncio.sleep(0.01)

        await asyncio.wait_for(counted(), PATIENCE)
        assert float(hits[0].split()[-1]) >= 1
        kept.leave()


@pytest.mark.virtual_time
async def test_handshake_of_a_reserved_connection_has_less_time(authority: Authority) -> None:
    async with secured(authority, max_connections=1) as gateway:
        started = time.monotonic()
        first, reserved = await _silent(gateway, 2)
        assert await reserved.reader.read() == b""
        assert time.monotonic() - started == pytest.approx(OVER_LIMIT_IDLE_SECONDS, abs=0.1)
        assert not first.reader.at_eof()
        for client in (first, reserved):
            client.leave()


async def test_client_that_does_not_speak_tls_is_closed(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(authority) as gateway:
        [client] = await _silent(gateway, 1)
        client.request("/live", b"", method="GET")
        await asyncio.wait_for(client.reader.read(), PATIENCE)
        client.leave()
        assert await _live(gateway, authority) == b"HTTP/1.1 200"
    assert "Traceback" not in caplog.text


class _ShortOnce:
    """A listening socket whose first accept fails because the process may open no more files."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.refused = 0

    def fileno(self) -> int:
        return self._listener.fileno()

    def close(self) -> None:
        self._listener.close()

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.refused:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()


class _App:
    limits = ClientLimits()

    def limit_reached(self, limit: str) -> None: ...


async def test_accepting_pauses_after_a_shortage_of_files(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not fail again and again meanwhile."""
    monkeypatch.setattr(tls, "_SHORTAGE_PAUSE", 0.05)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.files())
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[0]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        short = _ShortOnce(listener)
        acceptor = Acceptor(cast(socket.socket, short), context, make, cast(Any, _App()), ServerState())
        client = await RawClient.connect(listener.getsockname()[1], 2**16, authority.client())
        await until(lambda: bool(made))
        assert (short.refused, caplog.text.count("Too many open files")) == (1, 1)
        client.leave()
        for _ in range(2):
            acceptor.close()
        await acceptor.wait_closed()
        assert listener.fileno() == -1
