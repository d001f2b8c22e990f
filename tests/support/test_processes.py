"""Processes that tests start end with the tests, whatever ends those."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.gateway import until
from tests.support.processes import PATIENCE, ROOT

PARENT = """
import subprocess, time
from tests.support.processes import die_with_parent
print(subprocess.Popen(["sleep", "60"], preexec_fn=die_with_parent).pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked for that")
async def test_process_ends_with_tests_that_are_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert _sleeps(child)
    parent.kill()
    await parent.wait()
    await until(lambda: not _sleeps(child), PATIENCE)


def _sleeps(process: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
