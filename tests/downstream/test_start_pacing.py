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


async def test_callback_during_a_burst_waits_for_one_iteration_of_starts_and_not_for_all() -> None:
    pacer = StartPacer()
    started: list[int] = []
    seen: list[int] = []
    for number in range(5000):
        pacer.start(started.append, number)
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: seen.append(len(started)))
    while len(started) < 5000:  # noqa: ASYNC110 - each iteration is checked
        await asyncio.sleep(0)
    assert seen[0] <= 2 * PER_ITERATION
    assert started == list(range(5000))


async def test_iteration_starts_no_more_than_its_share() -> None:
    pacer = StartPacer()
    started: list[int] = []
    for number in range(1000):
        pacer.start(started.append, number)
    before = len(started)
    while before < 1000:  # each iteration is checked
        await asyncio.sleep(0)
        assert len(started) - before <= PER_ITERATION
        before = len(started)
