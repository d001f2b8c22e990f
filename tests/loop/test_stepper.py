"""A stepped coroutine runs in the callbacks it awaits, can be interrupted, and ends once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.loop.stepper import CoroutineStepper, Wakeup, in_task


class Stop(Exception):
    """The reason a test interrupts with."""


def stepped(work: Callable[[list[Any]], Coroutine[Any, Any, None]]) -> tuple[CoroutineStepper, list[Any]]:
    """Start a stepper; return it and the notes of its coroutine, "ended" at the end."""
    notes: list[Any] = []
    stepper = CoroutineStepper()
    stepper.start(work(notes), lambda: notes.append("ended"))
    return stepper, notes


async def test_coroutine_goes_on_inside_the_call_that_fires_its_wakeup() -> None:
    wakeup = Wakeup()

    async def work(notes: list[Any]) -> None:
        for number in range(3):
            notes.append(number)
            await wakeup

    _, notes = stepped(work)
    assert notes == [0]
    for after in ([0, 1], [0, 1, 2], [0, 1, 2, "ended"], [0, 1, 2, "ended"]):
        wakeup.fire()
        assert notes == after


async def test_interrupt_raises_where_the_coroutine_waits() -> None:
    wakeup = Wakeup()

    async def work(notes: list[Any]) -> None:
        try:
            await wakeup
        except Stop as reason:
            notes.append(reason)
            await wakeup
            notes.append("went on")

    stepper, notes = stepped(work)
    reason = Stop()
    stepper.interrupt(reason)
    assert notes == [reason]
    wakeup.fire()
    assert notes == [reason, "went on", "ended"]
    stepper.interrupt(Stop())
    assert notes[-1] == "ended"


async def test_interrupt_of_a_running_coroutine_is_raised_at_its_next_wait() -> None:
    """Only the first reason counts; a coroutine that never waits again is not interrupted."""
    wakeup = Wakeup()
    steppers: list[CoroutineStepper] = []
    first = Stop("first")

    async def work(notes: list[Any]) -> None:
        await wakeup
        steppers[0].interrupt(first)
        steppers[0].interrupt(Stop("second"))
        notes.append("ran on")
        try:
            await wakeup
        except Stop as reason:
            notes.append(reason)
        steppers[0].interrupt(Stop("too late"))

    stepper, notes = stepped(work)
    steppers.append(stepper)
    wakeup.fire()
    assert notes == ["ran on", first, "ended"]


async def test_futures_tasks_and_bare_yields_can_be_awaited() -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    done = asyncio.Event()

    async def work(notes: list[Any]) -> None:
        notes.append(await future)
        await asyncio.sleep(0)
        notes.append(await loop.create_task(answer()))
        done.set()

    _, notes = stepped(work)
    future.set_result("done")
    await done.wait()
    assert notes == ["done", 42, "ended"]


async def test_future_that_is_done_after_an_interrupt_resumes_nothing() -> None:
    future = asyncio.get_running_loop().create_future()
    wakeup = Wakeup()

    async def work(notes: list[Any]) -> None:
        try:
            await future
        except Stop:
            await wakeup
            notes.append("wakeup")

    stepper, notes = stepped(work)
    stepper.interrupt(Stop())
    future.set_result(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert notes == []
    wakeup.fire()
    assert notes == ["wakeup", "ended"]


async def test_exception_of_the_coroutine_goes_to_the_caller_that_ran_it() -> None:
    wakeup = Wakeup()

    async def work(notes: list[Any]) -> None:
        await wakeup
        raise Stop

    _, notes = stepped(work)
    with pytest.raises(Stop):
        wakeup.fire()
    assert notes == ["ended"]


async def test_task_can_await_a_wakeup_and_be_cancelled() -> None:
    wakeup = Wakeup()

    async def work() -> str:
        await wakeup
        return "fired"

    for _ in range(2):
        task = asyncio.get_running_loop().create_task(work())
        await asyncio.sleep(0)
        wakeup.fire()
        assert await task == "fired"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await wakeup


async def test_in_task_returns_the_result_or_raises_the_error() -> None:
    async def good() -> int:
        async with asyncio.timeout(1):  # needs the current task
            await asyncio.sleep(0)
        return 7

    async def bad() -> int:
        raise Stop

    done = asyncio.Event()

    async def work(notes: list[Any]) -> None:
        notes.append(await in_task(good(), notes.append))
        try:
            await in_task(bad(), notes.append)
        except Stop:
            notes.append("bad")
        done.set()

    _, notes = stepped(work)
    await done.wait()
    assert notes == [7, "bad", "ended"]


async def test_in_task_is_cancelled_with_its_caller_and_a_late_result_is_discarded() -> None:
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
    for work_in_task in (endless, stubborn):

        async def work(notes: list[Any], wanted: Any = work_in_task) -> None:
            await in_task(wanted(), discarded.append)

        stepper, notes = stepped(work)
        await asyncio.sleep(0)
        with pytest.raises(Stop):
            stepper.interrupt(Stop())
        assert notes == ["ended"]
    await ended.wait()
    while not discarded:  # noqa: ASYNC110 - a few iterations, and there is no event to wait for
        await asyncio.sleep(0)
    assert discarded == ["late"]
