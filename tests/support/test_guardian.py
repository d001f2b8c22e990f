"""Processes that tests start end with the tests, whatever ends those."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.gateway import until
from tests.support.processes import PATIENCE, ROOT

#: A test run that starts a process in a session of its own, which starts another one, and then ends.
RUN = """
import os, signal, subprocess, threading, time
from tests.support.guardian import Guardian
guardian = Guardian()
command = ["sh", "-c", "sleep 3600 & echo $! $$; wait"]
started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
print(started.stdout.readline(), end="", flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the guardian needs /proc")
@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "threading.Thread(target=os._exit, args=(1,)).start(); time.sleep(3600)",  # as pytest-timeout does
        "guardian.close()",
    ],
)
async def test_processes_end_with_the_test_run_that_started_them(end: str) -> None:
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN + end, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert run.stdout is not None
    started = (await run.stdout.readline()).decode().split()
    assert len(started) == 2
    await run.wait()
    await until(lambda: not any(map(_runs, started)), PATIENCE)


def _runs(pid: str) -> bool:
    """Return False for a process that is gone, or a zombie, which has no command line any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False
