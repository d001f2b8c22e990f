"""An iteration of the event loop starts a bounded number of exchanges."""

from __future__ import annotations

import asyncio

from gateway.downstream.start_pacing import PER_ITERATION, StartPacer


async def test_few_requests_start_at_once() -> None:
    pacer = StartPacer()
    started: list[int] = []
    for number in range(PER_ITERATION):
        pacer.start(started.append, number)
    assert started == list(range(PER_ITERATION))


async def test_iteration_starts_no_more_than_its_share_and_all_in_order() -> None:
    pacer = StartPacer()
    started: list[int] = []
    for number in range(1000):
        pacer.start(started.append, number)
    before = len(started)
    while before < 1000:  # each iteration is checked
        await asyncio.sleep(0)
        assert len(started) - before <= PER_ITERATION
        before = len(started)
    assert started == list(range(1000))
