"""Works that run in steps share the loop with each other and with all else."""

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


async def test_works_take_turns() -> None:
    seen: list[str] = []
    turns = TimeSlices()
    results = await asyncio.gather(*(turns.run(steps(name, 3, seen)) for name in "abc"))
    assert results == ["a", "b", "c"]
    assert "".join(seen) == "abcabcabc"


async def test_turn_of_the_loop_has_one_step_at_most() -> None:
    seen: list[str] = []
    turns = TimeSlices()
    works = asyncio.gather(*(turns.run(steps(name, 5, seen)) for name in "abcd"))
    while not works.done():
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) <= before + 1
    assert len(seen) == 20


async def test_failure_of_a_step_is_that_of_its_work_alone() -> None:
    def broken() -> Generator[None, None, None]:
        yield
        raise ValueError("no")

    turns = TimeSlices()
    good = asyncio.ensure_future(turns.run(steps("a", 4, [])))
    with pytest.raises(ValueError, match="no"):
        await turns.run(broken())
    assert await good == "a"


async def test_work_that_is_given_up_holds_up_no_other() -> None:
    seen: list[str] = []
    turns = TimeSlices()
    first = asyncio.ensure_future(turns.run(steps("a", 1000, seen)))
    second = asyncio.ensure_future(turns.run(steps("b", 3, seen)))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "b"
    assert seen.count("a") < 5


async def test_step_gives_what_it_yields_in_its_turn() -> None:
    def giving() -> Generator[bytes | None, None, None]:
        yield None
        yield b"a"
        raise ValueError("no")

    turns, work = TimeSlices(), giving()
    other = asyncio.ensure_future(turns.run(steps("a", 3, [])))
    assert [await turns.run_step(work), await turns.run_step(work)] == [b"", b"a"]
    with pytest.raises(ValueError, match="no"):
        await turns.run_step(work)
    assert (await turns.run_step(work), await other) == (None, "a")
