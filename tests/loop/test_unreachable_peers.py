"""Connections to hosts that vanished without closing them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.loop import unreachable_peers as module
from gateway.loop.tcp_info import TcpInfo
from gateway.loop.unreachable_peers import INTERVAL, LIMIT, UnreachablePeers

pytestmark = pytest.mark.virtual_time


class Wire:
    """A transport whose kernel reports ``info``."""

    def __init__(self) -> None:
        self.info: TcpInfo | None = TcpInfo(False, 1, 0)
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> UnreachablePeers:
    monkeypatch.setattr(module, "tcp_info", lambda wire: wire.info)
    return UnreachablePeers()


def wires(peers: UnreachablePeers, count: int = 1) -> list[Any]:
    made: list[Any] = [Wire() for _ in range(count)]
    for wire in made:
        peers.add(wire)
    return made


async def test_bytes_that_nobody_acknowledges_end_a_connection_after_20_s(peers: UnreachablePeers) -> None:
    (wire,) = wires(peers)
    await asyncio.sleep(100)  # idle for long before
    wire.info = TcpInfo(False, 1000, 3)
    await asyncio.sleep(LIMIT - 0.1)
    assert not wire.aborted
    await asyncio.sleep(2 * INTERVAL)
    assert wire.aborted


@pytest.mark.parametrize("why", ["all is acknowledged", "some is acknowledged", "unknown"])
async def test_peer_that_is_there_keeps_its_connection(peers: UnreachablePeers, why: str) -> None:
    """A peer that does not read acknowledges what was sent, and nothing more is sent to it."""
    (wire,) = wires(peers)
    for second in range(200):
        if why == "all is acknowledged":
            wire.info = TcpInfo(False, 1000, 0)
        else:
            wire.info = TcpInfo(False, second // 15, 7) if why == "some is acknowledged" else None
        await asyncio.sleep(1)
    assert not wire.aborted


async def test_many_connections_are_looked_at_in_parts(peers: UnreachablePeers) -> None:
    made = wires(peers, 3 * module.AT_ONCE + 1)
    for wire in made[::2]:
        wire.info = TcpInfo(False, 5, 1)
    for wire in made[: module.AT_ONCE]:
        peers.remove(wire)
    await asyncio.sleep(LIMIT + 3 * INTERVAL)
    assert [wire.aborted for wire in made] == [
        index >= module.AT_ONCE and index % 2 == 0 for index in range(len(made))
    ]
