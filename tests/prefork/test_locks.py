"""One process at a time writes to a descriptor that several share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.prefork.locks import WriteLocks
from gateway.prefork.log_writer import LogWriter
from tests.support.processes import fill_pipe

#: A process that takes the lock of descriptor 1 until its input ends.
HOLDER = """
import fcntl, os, sys
fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX, 1, 1)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locks() -> Iterator[WriteLocks]:
    with closing(WriteLocks()) as made:
        yield made


def _holder(locks: WriteLocks) -> subprocess.Popen[str]:
    fd = locks._file
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(fd)]
    holder = subprocess.Popen(command, pass_fds=[fd], stdin=pipe, stdout=pipe, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    return holder


def test_lock_is_free_again_when_its_holder_was_killed(locks: WriteLocks) -> None:
    with _holder(locks) as holder:
        assert not locks.of(1).try_acquire()
        assert locks.of(2).try_acquire()
        holder.kill()
        holder.wait()
        assert locks.of(1).try_acquire()


def test_line_waits_for_the_lock_and_the_supervisor_does_not(locks: WriteLocks) -> None:
    out, into = os.pipe()
    with _holder(locks) as holder:
        lines = LogWriter(into, locks.of(1))
        lines.put(b"first")
        lines.put(b"second")
        assert len(lines) == 2
        holder.kill()
        holder.wait()
        lines.flush()
    assert os.read(out, 100) == b"first\nsecond\n"
    os.close(out)
    os.close(into)


def test_blocked_pipe_keeps_the_latest_lines_and_blocks_nobody(locks: WriteLocks) -> None:
    out, into = os.pipe()
    fill_pipe(into)
    lines = LogWriter(into, locks.of(into))
    for number in range(1500):
        lines.put(b"%d" % number)
    assert len(lines) == 1000
    os.set_blocking(out, False)
    read = b""
    while lines or not read.endswith(b"1499\n"):
        read += os.read(out, 1 << 20)
        lines.flush()
    assert b"x500\n501\n" in read
    os.close(out)
    os.close(into)


def test_broken_pipe_and_closed_descriptor_take_nothing(locks: WriteLocks) -> None:
    out, into = os.pipe()
    lines = LogWriter(into, locks.of(into))
    for end in (out, into):
        os.close(end)
        lines.put(b"dropped")
        assert not lines
