"""Draining: what runs goes on, what comes is refused, and the last one out is noticed."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Aborted, Cancelled, Draining
from gateway.lifecycle import Lifecycle


class Exchanges:
    """Open exchanges that end when they are told to, each in a task of its own."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.ended: list[object] = []
        self.may_end = asyncio.Event()

    async def run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.lifecycle.enter(task)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ended.append(self.lifecycle.reason(task))
            await asyncio.sleep(0)  # releasing may take a moment
        finally:
            self.lifecycle.leave(task)

    async def open(self, group: asyncio.TaskGroup, count: int) -> list[asyncio.Task[None]]:
        tasks = [group.create_task(self.run()) for _ in range(count)]
        await asyncio.sleep(0)
        assert self.lifecycle.open_exchanges == count
        return tasks


async def test_exchanges_are_counted() -> None:
    """Each open exchange counts once, until it leaves; leaving twice is harmless."""
    lifecycle = Lifecycle()
    exchanges = Exchanges(lifecycle)
    async with asyncio.TaskGroup() as group:
        tasks = await exchanges.open(group, 3)
        exchanges.may_end.set()
    assert lifecycle.open_exchanges == 0
    lifecycle.leave(tasks[0])
    assert await lifecycle.drained(0)


async def test_draining_refuses_what_comes_and_keeps_what_runs() -> None:
    """A new exchange is refused and leaves no trace; those that run go on."""
    lifecycle = Lifecycle()
    exchanges = Exchanges(lifecycle)
    async with asyncio.TaskGroup() as group:
        await exchanges.open(group, 2)
        lifecycle.drain()
        with pytest.raises(Draining):
            await exchanges.run()
        assert lifecycle.open_exchanges == 2
        assert not await lifecycle.drained(0.01)
        exchanges.may_end.set()
        assert await lifecycle.drained(1)
    assert exchanges.ended == []


async def test_end_cancels_one_for_its_first_reason() -> None:
    """An exchange is cancelled once; a later reason changes nothing; the others go on."""
    lifecycle = Lifecycle()
    exchanges = Exchanges(lifecycle)
    first, second = Cancelled("left"), Aborted("aborted")
    async with asyncio.TaskGroup() as group:
        tasks = await exchanges.open(group, 2)
        lifecycle.end(tasks[0], first)
        lifecycle.end(tasks[0], second)
        assert lifecycle.reason(tasks[0]) is first
        await asyncio.wait([tasks[0]])
        assert exchanges.ended == [first]
        assert lifecycle.reason(tasks[0]) is None
        assert not tasks[1].done()
        exchanges.may_end.set()


async def test_end_of_one_that_is_over() -> None:
    """A task that has left is not cancelled any more."""
    lifecycle = Lifecycle()
    task = asyncio.current_task()
    assert task is not None
    lifecycle.enter(task)
    lifecycle.leave(task)
    lifecycle.end(task, Cancelled("left"))
    await asyncio.sleep(0)
    assert lifecycle.reason(task) is None


async def test_cut_waits_until_all_have_released() -> None:
    """``cut`` ends all, each because of the shutdown, and returns when they are gone."""
    lifecycle = Lifecycle()
    exchanges = Exchanges(lifecycle)
    async with asyncio.TaskGroup() as group:
        await exchanges.open(group, 3)
        await lifecycle.cut()
        assert lifecycle.open_exchanges == 0
    assert [type(reason) for reason in exchanges.ended] == [Draining] * 3
    await lifecycle.cut()
