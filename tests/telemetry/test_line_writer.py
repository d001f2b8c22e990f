"""Lines are written in order, and a blocked descriptor never blocks the caller of the writer."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from unittest.mock import Mock

import pytest

from gateway.telemetry.line_writer import LineWriter
from tests.support.processes import fill_pipe

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def read_all(pipe: Pipe) -> bytes:
    os.close(pipe[1])
    parts = []
    while part := os.read(pipe[0], 65536):
        parts.append(part)
    return b"".join(parts)


def test_lines_come_out_in_order(pipe: Pipe) -> None:
    writer = LineWriter(pipe[1])
    for number in range(3000):
        writer.put(f"line {number}".encode())
    writer.close()
    assert read_all(pipe).decode().splitlines() == [f"line {number}" for number in range(3000)]
    assert writer.dropped == 0


def test_urgent_line_does_not_wait_for_a_batch(pipe: Pipe) -> None:
    """Its thread is not started before the first line."""
    writer = LineWriter(pipe[1])
    assert writer._writer_thread is None
    writer.put(b"now", soon=True)
    assert os.read(pipe[0], 100) == b"now\n"
    writer.close()


def test_lines_over_the_capacity_of_a_blocked_pipe_are_dropped_and_counted(pipe: Pipe) -> None:
    fill_pipe(pipe[1])
    writer = LineWriter(pipe[1], capacity=10)
    for number in range(5000):
        writer.put(str(number).encode())
    assert writer.dropped >= 5000 - 10 - 1024
    writer.close(seconds=0.01)
    os.read(pipe[0], 1 << 20)


def test_close_gives_up_on_a_blocked_pipe(pipe: Pipe) -> None:
    fill_pipe(pipe[1])
    writer = LineWriter(pipe[1])
    writer.put(b"never read", soon=True)
    writer.close(seconds=0.01)
    assert writer._writer_thread is not None
    assert writer._writer_thread.is_alive()
    while b"never read\n" not in os.read(pipe[0], 1 << 20):
        pass
    writer._writer_thread.join(5)
    assert not writer._writer_thread.is_alive()


def test_lines_are_dropped_once_the_reader_has_closed_the_pipe(pipe: Pipe) -> None:
    os.close(pipe[0])
    writer = LineWriter(pipe[1])
    writer.put(b"one", soon=True)
    writer.close()
    writer.put(b"two")
    assert writer.dropped == 2


def test_full_disk_is_reported_once_and_written_to_again_once_there_is_room(pipe: Pipe) -> None:
    """The first line after a cut one begins a line of its own."""
    failures: list[OSError] = []
    writer = LineWriter(pipe[1], on_failure=failures.append)
    free, full = os.dup(pipe[1]), os.open("/dev/full", os.O_WRONLY)
    try:
        os.dup2(full, pipe[1])
        for number in range(3):
            writer.put(b"lost", soon=True)
            while writer.dropped <= number:
                pass
        assert [error.errno for error in failures] == [errno.ENOSPC]
        os.dup2(free, pipe[1])
        writer._cut = True
        writer.put(b"kept", soon=True)
        assert os.read(pipe[0], 100) == b"\nkept\n"
        writer.close()
        assert (writer.dropped, len(failures)) == (3, 1)
    finally:
        os.close(free)
        os.close(full)


def test_write_that_is_cut_is_known(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[int | OSError] = [3, OSError(errno.ENOSPC, "full")]
    monkeypatch.setattr(os, "write", Mock(side_effect=results))
    writer = LineWriter(pipe[1])
    writer.put(b"lines", soon=True)
    writer.close()
    assert (writer.dropped, writer._cut) == (1, True)


def test_non_blocking_descriptor_is_waited_for(pipe: Pipe) -> None:
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, 4096)
    fill_pipe(pipe[1])
    os.set_blocking(pipe[1], False)
    writer = LineWriter(pipe[1])
    writer.put(b"y" * 10_000, soon=True)
    received = b""
    while not received.endswith(b"\n"):
        received += os.read(pipe[0], 4096)
    assert received.endswith(b"y" * 10_000 + b"\n")
    writer.close()
