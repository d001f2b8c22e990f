"""A driven coroutine runs in the callbacks it waited for, can be interrupted, and is over once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.loop.stepper import CoroutineStepper, Wakeup, in_task


class Stop(Exception):
    """Why a test interrupts."""


def driven(work: Callable[[list[Any]], Coroutine[Any, Any, None]]) -> tuple[CoroutineStepper, list[Any]]:
    """A started drive, and what its coroutine noted; "over" once it is over."""
    notes: list[Any] = []
    drive = CoroutineStepper()
    drive.start(work(notes), lambda: notes.append("over"))
    return drive, notes


async def test_coroutine_goes_on_inside_the_call_that_fires_its_signal() -> None:
    signal = Wakeup()

    async def work(notes: list[Any]) -> None:
        for number in range(3):
            notes.append(number)
            await signal

    _, notes = driven(work)
    assert notes == [0]
    signal.fire()
    assert notes == [0, 1]
    signal.fire()
    signal.fire()
    assert notes == [0, 1, 2, "over"]
    signal.fire()
    assert notes == [0, 1, 2, "over"]


async def test_interrupt_raises_where_the_coroutine_waits() -> None:
    signal = Wakeup()

    async def work(notes: list[Any]) -> None:
        try:
            await signal
        except Stop as reason:
            notes.append(reason)
            await signal
            notes.append("went on")

    drive, notes = driven(work)
    reason = Stop()
    drive.interrupt(reason)
    assert notes == [reason]
    signal.fire()
    assert notes == [reason, "went on", "over"]
    drive.interrupt(Stop())
    assert notes[-1] == "over"


async def test_interrupt_of_one_that_runs_is_raised_at_its_next_wait() -> None:
    """The first of two reasons counts; one that never waits again ends as it would have."""
    signal = Wakeup()
    drives: list[CoroutineStepper] = []
    first = Stop("first")

    async def work(notes: list[Any]) -> None:
        await signal
        drives[0].interrupt(first)
        drives[0].interrupt(Stop("second"))
        notes.append("ran on")
        try:
            await signal
        except Stop as reason:
            notes.append(reason)
        drives[0].interrupt(Stop("too late"))

    drive, notes = driven(work)
    drives.append(drive)
    signal.fire()
    assert notes == ["ran on", first, "over"]


async def test_futures_tasks_and_bare_yields_can_be_awaited() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    over = asyncio.Event()

    async def work(notes: list[Any]) -> None:
        notes.append(await future)
        await asyncio.sleep(0)
        notes.append(await loop.create_task(answer()))
        over.set()

    _, notes = driven(work)
    future.set_result("done")
    await over.wait()
    assert notes == ["done", 42, "over"]


async def test_future_that_ends_after_an_interrupt_wakes_nobody() -> None:
    future = asyncio.get_running_loop().create_future()
    signal = Wakeup()

    async def work(notes: list[Any]) -> None:
        try:
            await future
        except Stop:
            await signal
            notes.append("signal")

    drive, notes = driven(work)
    drive.interrupt(Stop())
    future.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert notes == []
    signal.fire()
    assert notes == ["signal", "over"]


async def test_exception_of_the_coroutine_goes_to_whoever_ran_it() -> None:
    signal = Wakeup()

    async def work(notes: list[Any]) -> None:
        await signal
        raise Stop

    _, notes = driven(work)
    with pytest.raises(Stop):
        signal.fire()
    assert notes == ["over"]


async def test_task_can_wait_for_a_signal_and_be_cancelled() -> None:
    signal = Wakeup()

    async def work() -> str:
        await signal
        return "fired"

    loop = asyncio.get_running_loop()
    task = loop.create_task(work())
    await asyncio.sleep(0)
    signal.fire()
    assert await task == "fired"
    task = loop.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await signal
    task = loop.create_task(work())
    await asyncio.sleep(0)
    signal.fire()
    assert await task == "fired"


async def test_work_apart_gives_its_result_or_its_error() -> None:
    async def good() -> int:
        async with asyncio.timeout(1):  # needs a task of its own
            await asyncio.sleep(0)
        return 7

    async def bad() -> int:
        raise Stop

    over = asyncio.Event()

    async def work(notes: list[Any]) -> None:
        notes.append(await in_task(good(), notes.append))
        try:
            await in_task(bad(), notes.append)
        except Stop:
            notes.append("bad")
        over.set()

    _, notes = driven(work)
    await over.wait()
    assert notes == [7, "bad", "over"]


async def test_work_apart_ends_with_its_caller_and_its_late_result_is_discarded() -> None:
    ended = asyncio.Event()
    release = asyncio.Event()

    async def endless() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 0

    async def stubborn() -> str:
        try:
            await release.wait()
        except asyncio.CancelledError:
            pass
        return "late"

    discarded: list[Any] = []
    for work_apart in (endless, stubborn):

        async def work(notes: list[Any], wanted: Any = work_apart) -> None:
            await in_task(wanted(), discarded.append)

        drive, notes = driven(work)
        await asyncio.sleep(0)
        with pytest.raises(Stop):
            drive.interrupt(Stop())
        assert notes == ["over"]
    await ended.wait()
    while not discarded:  # noqa: ASYNC110 - a few turns, and no event to tell
        await asyncio.sleep(0)
    assert discarded == ["late"]
