"""Who may write to a descriptor that several processes share.

Owns: the lock, so that no line lands within another one, however long they are. Must never enter: lines.

A pipe takes no more than 4 KiB in one piece, and a batch of lines is longer. The locks are the kernel's,
taken on a file without a name: those of a process that was killed are free.
"""

from __future__ import annotations

import fcntl
import os
import tempfile


class WriteLock:
    """One descriptor's lock, a context manager. For one thread of a process at a time."""

    def __init__(self, file: int, place: int) -> None:
        self._file = file
        self._place = place

    def take_now(self) -> bool:
        """Take it if it is free; False: somebody writes."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._place)
        except OSError:
            return False
        return True

    def give_back(self) -> None:
        """Undo ``take_now``."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._place)

    def __enter__(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._place)

    def __exit__(self, *raised: object) -> None:
        self.give_back()


class WriteLocks:
    """The locks of all descriptors. Made before the processes are; one byte of the file stands for each."""

    def __init__(self) -> None:
        self._file = _nameless_file()

    def of(self, fd: int) -> WriteLock:
        return WriteLock(self._file, fd)

    def close(self) -> None:
        """Release the file; whoever else has it keeps it."""
        os.close(self._file)


def _nameless_file() -> int:
    """In memory where the system can, as there need not be a folder that can be written to."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("locks")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
