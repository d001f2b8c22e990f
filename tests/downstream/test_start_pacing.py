"""Exchanges start at the pace the loop can bear."""

from __future__ import annotations

import asyncio

from gateway.downstream.start_pacing import PER_TURN, StartPacer


async def test_few_requests_start_at_once() -> None:
    pace = StartPacer()
    started: list[int] = []
    for number in range(PER_TURN):
        pace.start(started.append, number)
    assert started == list(range(PER_TURN))


async def test_what_comes_during_a_burst_waits_for_one_turn_of_it_and_not_for_all() -> None:
    """A callback that becomes ready while thousands wait runs after as many starts as one turn has."""
    pace = StartPacer()
    started: list[int] = []
    seen: list[int] = []
    for number in range(5000):
        pace.start(started.append, number)
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: seen.append(len(started)))
    while len(started) < 5000:  # noqa: ASYNC110 - each turn is looked at
        await asyncio.sleep(0)
    assert seen[0] <= 2 * PER_TURN
    assert started == list(range(5000))


async def test_a_turn_starts_no_more_than_its_share() -> None:
    pace = StartPacer()
    started: list[int] = []
    for number in range(1000):
        pace.start(started.append, number)
    before = len(started)
    while before < 1000:  # each turn is looked at
        await asyncio.sleep(0)
        assert len(started) - before <= PER_TURN
        before = len(started)
