"""Computations that run in steps share the event loop with each other and with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from gateway.loop.time_slices import TimeSlices


def steps(name: str, count: int, seen: list[str]) -> Generator[None, None, str]:
    for _ in range(count):
        seen.append(name)
        yield
    return name


async def test_computations_run_in_turn_one_step_in_an_iteration_of_the_loop() -> None:
    seen: list[str] = []
    slices = TimeSlices()
    works = asyncio.gather(*(slices.run(steps(name, 3, seen)) for name in "abc"))
    while not works.done():
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) <= before + 1
    assert (await works, "".join(seen)) == (["a", "b", "c"], "abcabcabc")


async def test_step_that_fails_ends_its_own_computation_only() -> None:
    def broken() -> Generator[None, None, None]:
        yield
        raise ValueError("no")

    slices = TimeSlices()
    good = asyncio.ensure_future(slices.run(steps("a", 4, [])))
    with pytest.raises(ValueError, match="no"):
        await slices.run(broken())
    assert await good == "a"


async def test_cancelled_computation_delays_no_other() -> None:
    seen: list[str] = []
    slices = TimeSlices()
    first = asyncio.ensure_future(slices.run(steps("a", 1000, seen)))
    second = asyncio.ensure_future(slices.run(steps("b", 3, seen)))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "b"
    assert seen.count("a") < 5


async def test_run_step_returns_what_one_step_yields() -> None:
    def yielding() -> Generator[bytes | None, None, None]:
        yield None
        yield b"a"
        raise ValueError("no")

    slices, work = TimeSlices(), yielding()
    other = asyncio.ensure_future(slices.run(steps("a", 3, [])))
    assert [await slices.run_step(work), await slices.run_step(work)] == [b"", b"a"]
    with pytest.raises(ValueError, match="no"):
        await slices.run_step(work)
    assert (await slices.run_step(work), await other) == (None, "a")
