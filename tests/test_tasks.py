"""Background tasks end with their owner, and their failures are told."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from gateway.tasks import Tasks


async def test_task_is_kept_alive() -> None:
    """Nobody else holds the task, yet it runs to its end."""
    tasks, done = Tasks(), asyncio.Event()

    async def work() -> None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(gate.set_result, None)
        await gate
        done.set()

    tasks.spawn(work(), "work")
    gc.collect()
    assert len(tasks) == 1
    await done.wait()
    await tasks.wait(1)
    assert len(tasks) == 0


async def test_stop_cancels_and_waits() -> None:
    """After ``stop`` every task has ended, clean-up included."""
    tasks, started, cleaned = Tasks(), asyncio.Event(), []

    async def work(number: int) -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    for number in range(3):
        tasks.spawn(work(number), "work")
    await started.wait()
    await tasks.stop()
    assert sorted(cleaned) == [0, 1, 2]
    assert len(tasks) == 0
    await tasks.stop()


async def test_wait_is_bounded() -> None:
    """``wait`` gives up after its time and leaves the tasks running."""
    tasks = Tasks()
    task = tasks.spawn(asyncio.Event().wait(), "work")
    await tasks.wait(0.01)
    assert not task.done()
    await tasks.stop()
    assert task.cancelled()


async def test_failure_is_logged_under_the_name(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a task reaches the log, not the loop, and takes no other task along."""
    tasks = Tasks()

    async def fail() -> None:
        raise ValueError("broken")

    other = tasks.spawn(asyncio.Event().wait(), "other")
    with caplog.at_level(logging.ERROR):
        failed = tasks.spawn(fail(), "the work")
        await asyncio.wait([failed])
        await asyncio.sleep(0)
    assert "the work" in caplog.text
    assert "broken" in caplog.text
    assert not other.done()
    await tasks.stop()
    assert caplog.text.count("background task") == 1
