"""Requests end half a minute after a host became unreachable without a FIN or RST; no living peer's do."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.sim import SimConfig, SimServer
from gateway.sim.request_log import Arrival
from tests.chaos.gateways import gateway
from tests.security.certificates import Authority
from tests.support.gateway import RawClient, arrived, generates, until
from tests.support.generate import KINDS, body_of
from tests.support.hosts import THERE, OtherHost, connection, other_host

#: Seconds after which no request of an unreachable host runs.
LIMIT = 30
#: Requests whose engine is silent for longer than the test, before the head or after some events.
SILENT = {"X-Sim-Start-Delay": "1000"}, {"X-Sim-Stall-After": "2"}
#: Bytes of the receive buffer of a client that does not read.
SMALL = 2**13

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def there() -> Iterator[OtherHost]:
    with other_host() as host:
        yield host


async def test_requests_of_an_unreachable_worker_end(there: OtherHost, tmp_path: Path) -> None:
    """Those that it runs, and those that are sent to it on kept connections; in clear and over TLS."""
    tls: list[ssl.SSLContext | None] = [None, Authority(tmp_path).server(THERE)]
    sims = [SimServer(kind, SimConfig(host=THERE), tls=each) for kind, each in zip(KINDS, tls, strict=True)]
    async with gateway(tmp_path / "log", "--worker-tls-insecure") as gw:

        async def ask(kind: str, stream: bool = False, **headers: str) -> str:
            body = body_of(kind, 9, stream)
            reply = await gw.client.post(KINDS[kind], json=body, headers=headers, timeout=60)
            return f"{reply.status_code} {reply.text}"

        with there.inside():
            for sim in sims:
                await sim.start()
        await gw.site.serve(*sims)
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(ask(kind, "Stall" in "".join(headers), **headers))
                for kind in KINDS
                for headers in SILENT
            ]
            await arrived(len(running), *sims)
            await asyncio.gather(*(ask(kind) for kind in 3 * (*KINDS,)))
            there.disconnect()
            sent = [group.create_task(ask(kind)) for kind in 3 * (*KINDS,)]
            _, late = await asyncio.wait([*running, *sent], timeout=LIMIT)
            assert not late
            assert all("502" in task.result() for task in [*running, *sent])
        for sim in sims:
            await sim.kill()


async def test_requests_of_unreachable_clients_are_aborted(there: OtherHost, tmp_path: Path) -> None:
    """One that waits, one that reads a stream, and one that does not read its stream. A client that does not
    read and can be reached keeps its stream.
    """
    flags = ("--host", "0.0.0.0")
    async with (
        SimServer("sglang", SimConfig(merge_unread=False)) as sim,
        gateway(tmp_path / "log", *flags) as gw,
    ):
        await gw.site.serve(sim)

        clients: list[RawClient] = []

        async def ask(sock: socket.socket, tokens: int, **headers: str) -> None:
            client = RawClient(*await asyncio.open_connection(sock=sock, limit=2**12))
            clients.append(client)
            body = json.dumps(body_of("sglang", tokens, stream=tokens > 1)).encode()
            client.request(KINDS["sglang"], body, headers=tuple(headers.items()))
            await arrived(len(clients), sim)

        await ask(there.connect(gw.port), 1, **SILENT[0])
        await ask(there.connect(gw.port), 5000, **{"X-Sim-Token-Delay": "0.05"})
        await ask(there.connect(gw.port, SMALL), 2000)
        await ask(connection(gw.port, SMALL), 2000)
        *lost, living = generates(sim)
        await clients[1].head()
        await _stalled(lost[2], living)
        there.disconnect()
        async with asyncio.timeout(LIMIT):
            await until(lambda: all(each.aborted or each.client_gone for each in lost))
        assert living.aborted is None and living.client_gone is None
        for client in clients:
            client.leave(reset=True)


async def _stalled(*streams: Arrival) -> None:
    """Return once none of ``streams`` has had an event for half a second."""
    before: list[int] = []
    while (now := [stream.events for stream in streams]) != before:
        before = now
        await asyncio.sleep(0.5)
