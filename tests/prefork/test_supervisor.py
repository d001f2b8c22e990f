"""The supervisor of scripted processes; test_gateway.py has real ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.processes import PATIENCE


@contextmanager
def supervised(script: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.prefork.scripted_processes", script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], text: str, times: int = 1) -> list[str]:
    """Return the log up to the line that contains ``text`` for the ``times``-th time."""
    assert process.stderr is not None
    found: list[str] = []
    for line in process.stderr:
        found.append(line)
        if sum(text in each for each in found) == times:
            return found
    raise AssertionError(f"no {text!r} in {found}")


def serving(process: subprocess.Popen[str]) -> list[int]:
    """Wait until both processes serve, and return their ids."""
    log = "".join(lines_until(process, " serves", 2))
    return [int(pid) for pid in re.findall(r"process (\d+) serves", log)]


def test_process_that_cannot_start_ends_all_with_its_exit_code() -> None:
    with supervised("fails") as process:
        log = "".join(lines_until(process, "giving up"))
        assert "RuntimeError: a fault of the process" in log
        assert process.wait(PATIENCE) == 1


def test_process_that_exits_repeatedly_is_restarted_later_each_time() -> None:
    """The first restart is immediate, and the other process is not affected."""
    with supervised("replacement_exits") as process:
        os.kill(serving(process)[0], signal.SIGKILL)
        log = lines_until(process, "is restarted", 3)
        assert re.findall(r"is restarted in ([\d.]+) s", "".join(log)) == ["0.25", "0.5", "1"]
        assert sum("ended with code 1" in line for line in log) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_process_that_does_not_end_is_killed() -> None:
    with supervised("hangs") as process:
        lines_until(process, " serves", 2)
        process.send_signal(signal.SIGTERM)
        lines_until(process, "draining")
        process.send_signal(signal.SIGTERM)
        lines_until(process, "does not end: killed", 2)
        assert process.wait(PATIENCE) == 0


def test_process_that_hangs_is_killed_and_replaced() -> None:
    with supervised("beats") as process:
        victim = serving(process)[0]
        os.kill(victim, signal.SIGSTOP)
        log = "".join(lines_until(process, " serves"))
        assert f"process {victim} has not responded for 0.6 s: killed" in log
        assert f"process {victim} ended by signal 9" in log
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_time_in_which_the_supervisor_was_stopped_does_not_count_as_a_hang() -> None:
    """It is stopped by Ctrl-Z, or with the machine; frames cannot arrive then."""
    with supervised("beats") as process:
        pids = serving(process)
        for pid in (*pids, process.pid):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.1)  # the supervisor polls before there is a frame
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        log = "".join(lines_until(process, "draining"))
        assert "has not responded" not in log
        assert process.wait(PATIENCE) == 0
