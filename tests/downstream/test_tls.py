"""TLS connections whose handshake is not complete."""

from __future__ import annotations

import asyncio
import errno
import socket
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
from tests.support.gateway import RawClient, Rig, eventually, limit_hits, until
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


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("settings", "count", "seconds"),
    [({"header_timeout_secs": 5}, 1, 5), ({"max_connections": 1}, 2, OVER_LIMIT_IDLE_SECONDS)],
    ids=["usual", "reserved"],
)
async def test_handshake_has_the_time_limit_of_a_head_and_less_on_a_reserved_connection(
    settings: dict[str, int], count: int, seconds: float, authority: Authority
) -> None:
    async with secured(authority, **settings) as gateway:
        started = time.monotonic()
        *others, last = await _silent(gateway, count)
        if not others:
            assert await _live(gateway, authority) == b"HTTP/1.1 200"
        assert await last.reader.read() == b""
        assert time.monotonic() - started == pytest.approx(seconds, abs=0.1)
        for client in others:
            assert not client.reader.at_eof()
            client.leave()
        last.leave()


async def test_connection_over_the_limit_is_closed_before_its_handshake(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None of those before it may end meanwhile, however long a busy machine takes to connect them all.
    monkeypatch.setattr(tls, "OVER_LIMIT_IDLE_SECONDS", 600.0)
    async with secured(authority, max_connections=2) as gateway:
        kept = await client_of(gateway, authority)
        silent = await _silent(gateway, RESERVED_CONNECTIONS + 2)
        assert await silent[-1].reader.read() == b""
        kept.request("/live", b"", method="GET")
        assert (await kept.head()).startswith(b"HTTP/1.1 200")
        for client in silent:
            client.leave(reset=True)

        async def counted() -> bool:
            try:
                return (await limit_hits(gateway)).get("sockets", 0) >= 1
            except httpx.TransportError:
                return False

        await eventually(counted)
        kept.leave()


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


class _ShortOnce(socket.socket):
    """A listening socket whose first accept fails because the process may open no more files."""

    refused = 0

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.refused:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class _App:
    limits = ClientLimits()

    def limit_reached(self, limit: str) -> None: ...


async def test_accepting_pauses_after_a_shortage_of_files(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "_SHORTAGE_PAUSE", 0.05)
    made: list[asyncio.Protocol] = []

    def make() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[0]

    with _ShortOnce() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        acceptor = Acceptor(listener, authority.server(), make, cast(Any, _App()), ServerState())
        client = await RawClient.connect(listener.getsockname()[1], 2**16, authority.client())
        await until(lambda: bool(made))
        assert (listener.refused, caplog.text.count("Too many open files")) == (1, 1)
        client.leave()
        for _ in range(2):
            acceptor.close()
        await acceptor.wait_closed()
        assert listener.fileno() == -1
