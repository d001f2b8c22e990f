"""Locks for descriptors that several processes write to.

Owns: the locks, by which lines of several processes never mix, however long they are. Must never enter: the
lines.

A write of more than 4 KiB to a pipe is not atomic (PIPE_BUF), and a batch of lines is longer. The locks are
POSIX record locks on an unlinked file: the kernel releases those of a process that was killed.
"""

from __future__ import annotations

import fcntl
import os
import tempfile


class WriteLock:
    """The lock of one descriptor; a context manager. Only one thread of a process may use it at a time."""

    def __init__(self, file: int, offset: int) -> None:
        self._file = file
        self._offset = offset

    def try_acquire(self) -> bool:
        """Take the lock if it is free; return False if another process has it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._offset)
        except OSError:
            return False
        return True

    def release(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._offset)

    def __enter__(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._offset)

    def __exit__(self, *raised: object) -> None:
        self.release()


class WriteLocks:
    """The locks of all descriptors: one byte of the file for each. Must be created before the processes."""

    def __init__(self) -> None:
        self._file = _unlinked_file()

    def of(self, fd: int) -> WriteLock:
        """Return the lock of the descriptor ``fd``."""
        return WriteLock(self._file, fd)

    def close(self) -> None:
        """Close the file; other processes keep their copies."""
        os.close(self._file)


def _unlinked_file() -> int:
    """Return a file in memory where the system has those, as there may be no writable folder."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("locks")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
