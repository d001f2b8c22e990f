"""A stepped coroutine runs in the callbacks it awaits, can be interrupted, and ends once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
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


async def test_coroutine_goes_on_inside_the_call_that_fires_its_wakeup_and_raises_there() -> None:
    wakeup = Wakeup()

    async def work(notes: list[Any]) -> None:
        for number in range(3):
            notes.append(number)
            await wakeup
        raise Stop

    _, notes = stepped(work)
    assert notes == [0]
    for after in ([0, 1], [0, 1, 2]):
        wakeup.fire()
        assert notes == after
    with pytest.raises(Stop):
        wakeup.fire()
    wakeup.fire()
    assert notes == [0, 1, 2, "ended"]


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
    future, done = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def work(notes: list[Any]) -> None:
        notes.append(await future)
        await asyncio.sleep(0)
        notes.append(await asyncio.ensure_future(asyncio.sleep(0, 42)))
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


async def test_task_can_await_a_wakeup_and_be_cancelled() -> None:
    wakeup = Wakeup()

    async def work() -> str:
        await wakeup
        return "fired"

    for _ in range(2):
        task = asyncio.ensure_future(work())
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
        with pytest.raises(Stop):
            await in_task(bad(), notes.append)
        done.set()

    _, notes = stepped(work)
    await done.wait()
    assert notes == [7, "ended"]


async def test_in_task_is_cancelled_with_its_caller_and_a_late_result_is_discarded() -> None:
    cancelled, discarded = asyncio.Event(), asyncio.Queue[str]()

    async def endless() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "late"

    for work_in_task in (endless, stubborn):

        async def work(notes: list[Any], wanted: Any = work_in_task) -> None:
            await in_task(wanted(), discarded.put_nowait)

        stepper, notes = stepped(work)
        await asyncio.sleep(0)
        with pytest.raises(Stop):
            stepper.interrupt(Stop())
        assert notes == ["ended"]
    await cancelled.wait()
    assert await discarded.get() == "late" and discarded.empty()
