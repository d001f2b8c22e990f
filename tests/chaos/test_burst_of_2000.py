"""A burst on a healthy fleet is served: no request is refused, and the control plane answers."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.chaos.dialects import GENERATE, Route, named
from tests.chaos.gateways import Gateway, gateway
from tests.chaos.steady import OPEN_FILES, burst, steadily
from tests.chaos.worker import Call

COUNT = 2000
LIMITED = ("sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh")
GIBIBYTE = 1024**3


async def in_two_to_four_seconds(call: Call) -> None:
    await asyncio.sleep(random.uniform(2, 4))
    call.reply()


async def peak_memory(gw: Gateway, over: asyncio.Event) -> float:
    """Return the highest memory use of the gateway until ``over``, in bytes."""
    most = 0.0
    while not over.is_set():
        most = max(most, await gw.metric("process_resident_memory_bytes"))
        await asyncio.wait([asyncio.ensure_future(over.wait())], timeout=0.5)
    return most


@pytest.mark.timeout(150)
@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_two_thousand_requests_at_once_are_all_served_by_eight_workers(
    tmp_path: Path, route: Route
) -> None:
    """No worker gets more than twice its share, /health answers, and memory stays below 1 GiB."""
    async with (
        gateway(tmp_path / "log", before=LIMITED) as gw,
        gw.fleet(route.kind, 8, in_two_to_four_seconds) as fleet,
    ):
        over = asyncio.Event()
        memory = asyncio.ensure_future(peak_memory(gw, over))
        async with steadily(gw.url + "/health", interval=0.2) as health:
            replies = await burst(gw.url + route.path, COUNT, route.question(filler="x" * 20_000))
        over.set()
        assert (replies.failures, len(replies.seconds)) == ([], COUNT)
        assert sum(len(worker.calls) for worker in fleet) == COUNT
        assert max(len(worker.calls) for worker in fleet) <= 2 * COUNT / len(fleet)
        assert health.failures == []
        assert await memory < GIBIBYTE
        assert await gw.in_flight() == 0
        assert await gw.states(*fleet) == ["ready"] * 8
