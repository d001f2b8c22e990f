"""A guardian process, which kills what the tests started when the tests have ended, however they ended.

Owns: the environment variable that marks the processes of one test run, and the search for them. Must never
enter: how a test starts or stops a process.

A test run can end without any cleanup: pytest-timeout ends it with ``os._exit``, and a user or the kernel
with SIGKILL. Each process that a test starts inherits the environment variable, and so do the processes that
it starts, in whatever process group or session. The guardian has the read end of a pipe; end of file tells
it that the test run has ended. The search reads ``/proc``; on systems without it the guardian does nothing.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "TITO_GATEWAY_TEST_RUN"
#: Searches for processes: each may have missed one that was being forked.
_MOST_SEARCHES = 100


class Guardian:
    """The guardian of this process: covers all processes that are started after it was made."""

    def __init__(self) -> None:
        run = secrets.token_hex(16)
        command = [sys.executable, "-S", __file__, run]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        os.environ[VARIABLE] = run  # noqa: TID251 - processes that tests start inherit it

    def close(self) -> None:
        """Kill now what is still running, and end the guardian."""
        self._process.communicate()


def _processes_of(run: str) -> Iterator[int]:
    mark = f"{VARIABLE}={run}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


def _main(run: str) -> None:
    sys.stdin.read()
    for _ in range(_MOST_SEARCHES):
        found = list(_processes_of(run))
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    _main(sys.argv[1])
