"""An iteration of the event loop starts a bounded number of exchanges."""

from __future__ import annotations

import asyncio

from gateway.downstream.start_pacing import PER_ITERATION, StartPacer


async def test_iteration_starts_no_more_than_its_share_and_all_in_order() -> None:
    pacer = StartPacer()
    started: list[int] = []
    for number in range(1000):
        pacer.start(started.append, number)
    assert len(started) == PER_ITERATION
    while (before := len(started)) < 1000:
        await asyncio.sleep(0)
        assert len(started) - before <= PER_ITERATION
    assert started == list(range(1000))
