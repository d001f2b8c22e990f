"""Background tasks end with their owner, and their failures are told."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from gateway.loop import tasks as module
from gateway.loop.tasks import Tasks


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


async def test_what_must_go_on_begins_again_after_pauses_that_grow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line each time, and the traceback for who looks for the bug; its owner is told."""
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.02)
    caplog.set_level(logging.DEBUG)
    tasks, told, begun = Tasks(), list[str](), 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0)
        if begun == 3:
            raise asyncio.CancelledError  # a future that it waited for was given up
        if begun < 5:
            raise RuntimeError("a bug") if begun > 1 else KeyError

    await asyncio.wait_for(tasks.keep(work, "the watch", told.append), 5)
    assert begun == 5 and len(tasks) == 0
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in said] == [
        "the watch failed, and begins again in 0.01 s: KeyError",
        "the watch failed, and begins again in 0.02 s: RuntimeError: a bug",
        "the watch failed, and begins again in 0.02 s: CancelledError",
        "the watch failed, and begins again in 0.02 s: RuntimeError: a bug",
    ]
    assert not any(record.exc_info for record in said)
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.DEBUG] == [
        True
    ] * 4
    assert told[0] == "the watch failed: KeyError" and len(told) == 4


async def test_what_went_well_for_long_is_begun_again_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.25)
    failures = [0.0, 0.0, 0.0, 0.26]

    async def work() -> None:
        if not failures:
            return
        await asyncio.sleep(failures.pop(0))
        raise RuntimeError

    await asyncio.wait_for(Tasks().keep(work, "work"), 5)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    pauses = [float(line.split(" in ")[1].split(" s:")[0]) for line in said]
    assert pauses == [0.001, 0.002, 0.004, 0.001]


async def test_what_must_go_on_ends_with_its_owner() -> None:
    """Also in a pause."""
    tasks, cleaned = Tasks(), list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("work")

    async def fail() -> None:
        raise RuntimeError

    tasks.keep(work, "work")
    tasks.keep(fail, "fail")
    await asyncio.sleep(0.01)
    assert len(tasks) == 2
    await asyncio.wait_for(tasks.stop(), 5)
    assert cleaned == ["work"] and len(tasks) == 0
