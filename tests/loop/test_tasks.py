"""Background tasks end with their owner, and their failures are reported."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import pytest

from gateway.loop.tasks import LONGEST_PAUSE, Tasks

pytestmark = pytest.mark.virtual_time


async def test_task_without_another_reference_runs_to_its_end() -> None:
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


async def test_stop_cancels_all_and_waits_for_their_cleanup() -> None:
    tasks, cleaned = Tasks(), list[str]()

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(name)

    async def fail() -> None:
        raise RuntimeError

    for name in "abc":
        tasks.spawn(work(name), "work")
    tasks.keep_running(lambda: work("kept"), "work")
    tasks.keep_running(fail, "fail")
    await asyncio.sleep(0.1)
    assert len(tasks) == 5
    for _ in range(2):
        await tasks.stop()
    assert sorted(cleaned) == ["a", "b", "c", "kept"] and len(tasks) == 0


async def test_wait_is_bounded_and_cancels_nothing() -> None:
    tasks, started = Tasks(), time.monotonic()
    task = tasks.spawn(asyncio.Event().wait(), "work")
    await tasks.wait(3)
    assert time.monotonic() - started == pytest.approx(3)
    assert not task.done()
    await tasks.stop()
    assert task.cancelled()


async def test_failure_is_logged_under_the_name_and_ends_no_other_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks()

    async def fail() -> None:
        raise ValueError("broken")

    other = tasks.spawn(asyncio.Event().wait(), "other")
    with caplog.at_level(logging.ERROR):
        failed = tasks.spawn(fail(), "the work")
        await asyncio.wait([failed])
        await asyncio.sleep(0)
    assert "the work" in caplog.text and "broken" in caplog.text
    assert not other.done()
    await tasks.stop()
    assert caplog.text.count("background task") == 1


async def test_work_that_fails_is_restarted_and_its_owner_notified(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tasks, reasons, runs = Tasks(), list[str](), 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0)
        if runs == 3:
            raise asyncio.CancelledError  # a future that it awaited was cancelled
        if runs < 5:
            raise RuntimeError("a bug") if runs > 1 else KeyError

    await tasks.keep_running(work, "the watch", reasons.append)
    assert runs == 5 and len(tasks) == 0
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "the watch failed and is restarted in 0.5 s: KeyError",
        "the watch failed and is restarted in 1 s: RuntimeError: a bug",
        "the watch failed and is restarted in 2 s: CancelledError",
        "the watch failed and is restarted in 4 s: RuntimeError: a bug",
    ]
    assert not any(record.exc_info for record in errors)
    details = [record for record in caplog.records if record.levelno == logging.DEBUG]
    assert len([record for record in details if record.exc_info is not None]) == 4
    assert reasons[0] == "the watch failed: KeyError" and len(reasons) == 4


async def test_pauses_grow_to_a_limit_and_start_again_after_a_long_run() -> None:
    runs = [0.0] * 9 + [LONGEST_PAUSE - 1, LONGEST_PAUSE]
    ended, pauses = time.monotonic(), list[float]()

    async def work() -> None:
        nonlocal ended
        pauses.append(time.monotonic() - ended)
        if not runs:
            return
        await asyncio.sleep(runs.pop(0))
        ended = time.monotonic()
        raise RuntimeError

    await Tasks().keep_running(work, "work")
    assert pauses == pytest.approx([0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30, 0.5])
