"""What the gateway may cost: memory, time to start and to end, and others' time while it is busy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from gateway.sim import Pace, SimConfig, SimServer
from tests.support.gateway import RawClient, arrived
from tests.support.generate import KINDS, body_of
from tests.support.processes import MEBIBYTE, resident
from tests.support.served import served

STREAMS = 1000
KIBIBYTE = 1024


@pytest.mark.parametrize("kind", ["sglang"])
async def test_idle_stream_takes_40_kibibytes_at_most(kind: str) -> None:
    silent = SimConfig(start_delay=60, max_running=2 * STREAMS)
    async with SimServer(kind, silent) as sim, served(sim.url) as gateway:
        clients = [await RawClient.connect(gateway.port, limit=4096) for _ in range(50 + STREAMS)]
        body = json.dumps(body_of(kind, 5, True)).encode()
        for client in clients[:50]:
            client.request(KINDS[kind], body)
        await arrived(50, sim)
        before = resident(gateway.process.pid)
        for client in clients[50:]:
            client.request(KINDS[kind], body)
        await arrived(50 + STREAMS, sim)
        each = (resident(gateway.process.pid) - before) / STREAMS
        for client in clients:
            client.leave(reset=True)
        assert each <= 40 * KIBIBYTE, f"{each / KIBIBYTE:.1f} KiB"


@pytest.mark.parametrize("kind", KINDS)
async def test_large_bodies_are_let_go_of_while_their_requests_run(kind: str) -> None:
    """Twelve of 8 MiB, whose engine thinks; unary, so that not even a head comes for as long."""
    body = json.dumps(body_of(kind, 5)).encode() + b" " * 8 * MEBIBYTE
    async with SimServer(kind, SimConfig()) as sim, served(sim.url) as gateway:
        sim.behave(Pace(prefill_base=60.0), times=13)
        clients = [await RawClient.connect(gateway.port) for _ in range(13)]
        clients[0].request(KINDS[kind], body)
        await arrived(1, sim)
        before = resident(gateway.process.pid)
        for number, client in enumerate(clients[1:], 2):
            client.request(KINDS[kind], body)
            await arrived(number, sim)
        most = 3 * 8 * MEBIBYTE  # of 96: what the allocator keeps for the next one
        held = 0
        for _ in range(200):
            held = resident(gateway.process.pid) - before
            if held <= most:
                break
            await asyncio.sleep(0.05)
        for client in clients:
            client.leave(reset=True)
        assert held <= most, f"{held / MEBIBYTE:.1f} MiB"


def used(pid: int) -> float:
    """CPU time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_gateway_starts_with_a_second_of_cpu_and_ends_within_one_of_sigterm_if_it_is_idle() -> None:
    """From nothing to the first 200. The best of up to six, as others use the machine, too."""
    starts, ends = [9.0], [9.0]
    async with SimServer("sglang", SimConfig()) as sim:
        while len(starts) <= 6 and max(min(starts), min(ends)) >= 1:
            async with served(sim.url) as gateway:
                starts.append(used(gateway.process.pid))
                start = time.perf_counter()
                gateway.process.send_signal(signal.SIGTERM)
                await gateway.process.wait()
                ends.append(time.perf_counter() - start)
    assert min(starts) < 1 and min(ends) < 1, (starts, ends)
