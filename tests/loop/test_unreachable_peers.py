"""Connections to hosts that vanished without closing them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


UNACKNOWLEDGED, WINDOW_PROBED = TcpInfo(False, 1000, 3), TcpInfo(False, 1000, probes=2)


@pytest.mark.parametrize("sent", [UNACKNOWLEDGED, WINDOW_PROBED])
async def test_host_that_answers_nothing_loses_its_connection_after_20_s(
    peers: UnreachablePeers, sent: TcpInfo
) -> None:
    (wire,) = wires(peers)
    await asyncio.sleep(100)  # idle for long before
    for second in range(30):
        wire.info = sent._replace(since_answer=100.0 + second, since_sent=second % 7)
        await asyncio.sleep(1)
        if second < LIMIT:
            assert not wire.aborted
    assert wire.aborted


#: What the kernel reports at a second in which a living peer acknowledges all, something, each attempt to
#: send the same again to a closed window, or the probes of that window, which come less and less often.
LIVING: dict[str, Callable[[int], TcpInfo | None]] = {
    "all": lambda second: TcpInfo(False, 1000, 0, 0, second, second),
    "some": lambda second: TcpInfo(False, second // 15, 7, 0, 0.1, second % 15),
    "retransmissions": lambda second: TcpInfo(False, 1000, 7, 0, second % 60, second % 60 - 0.01),
    "probes": lambda second: TcpInfo(False, 1000, 0, int(second % 60 == 0), second, second % 60),
    "unknown": lambda second: None,
}


@pytest.mark.parametrize("what", LIVING)
async def test_peer_that_is_there_keeps_its_connection(peers: UnreachablePeers, what: str) -> None:
    (wire,) = wires(peers)
    for second in range(200):
        wire.info = LIVING[what](second)
        await asyncio.sleep(1)
    assert not wire.aborted


async def test_many_connections_are_looked_at_in_parts(peers: UnreachablePeers) -> None:
    made = wires(peers, 3 * module.AT_ONCE + 1)
    for wire in made[::2]:
        wire.info = TcpInfo(False, 5, 1, since_answer=100)
    for wire in made[: module.AT_ONCE]:
        peers.remove(wire)
    await asyncio.sleep(LIMIT + 3 * INTERVAL)
    assert [wire.aborted for wire in made] == [
        index >= module.AT_ONCE and index % 2 == 0 for index in range(len(made))
    ]
