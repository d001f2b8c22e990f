"""Blocking calls beside the event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from gateway.loop.daemon_thread import DaemonThread
from gateway.loop.tasks import Tasks
from tests.support.gateway import until
from tests.support.processes import PATIENCE


async def test_calls_run_one_after_another_and_raise_where_they_are_awaited() -> None:
    thread, done = DaemonThread("test"), list[int]()

    def work(number: int) -> str:
        done.append(number)
        if number == 1:
            raise OSError("the disk is gone")
        return threading.current_thread().name

    results = await asyncio.gather(*(thread.run(partial(work, n)) for n in range(3)), return_exceptions=True)
    assert (results[0], str(results[1]), results[2], done) == ("test", "the disk is gone", "test", [0, 1, 2])
    thread.close()
    await until(lambda: "test" not in {each.name for each in threading.enumerate()})


async def test_call_whose_caller_was_cancelled_is_not_begun() -> None:
    thread, go, done = DaemonThread("test"), threading.Event(), list[str]()
    tasks = Tasks()
    tasks.spawn(thread.run(go.wait), "first")
    tasks.spawn(thread.run(lambda: done.append("second")), "second")
    await asyncio.sleep(0)
    await tasks.stop()
    go.set()
    await thread.run(lambda: done.append("third"))
    assert done == ["third"]
    thread.close()


_HANGS = """
import asyncio, threading
from gateway.loop.daemon_thread import DaemonThread

async def main() -> None:
    try:
        await asyncio.wait_for(DaemonThread("hangs").run(threading.Event().wait), 0.01)
    except TimeoutError:
        print("ended")

asyncio.run(main())
"""


def test_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    ended = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")


async def test_call_that_outlives_its_loop_ends_without_a_traceback() -> None:
    thread, go = DaemonThread("gone"), threading.Event()

    async def leave() -> None:
        Tasks().spawn(thread.run(go.wait), "left behind")
        await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        failed = list[object]()
        patch.setattr(threading, "excepthook", failed.append)
        await asyncio.to_thread(lambda: asyncio.run(leave()))
        go.set()
        thread.close()
        await until(lambda: "gone" not in {each.name for each in threading.enumerate()})
        assert not failed
