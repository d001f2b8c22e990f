"""Whose turn it is to write to a descriptor that several processes share.

Owns: the lock, so that no line lands within another one, however long they are. Must never enter: lines.

A pipe takes no more than 4 KiB in one piece, and a batch of lines is longer. The locks are the kernel's,
taken on a file without a name: those of a process that was killed are free.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import IO


class Turn:
    """One descriptor's lock, a context manager. For one thread of a process at a time."""

    def __init__(self, file: IO[bytes], place: int) -> None:
        self._file = file
        self._place = place

    def take_now(self) -> bool:
        """Take it if it is free; False: somebody writes."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._place)
        except OSError:
            return False
        return True

    def __enter__(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self._place)

    def __exit__(self, *raised: object) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, self._place)


class Turns:
    """The locks of all descriptors. Made before the processes are; one byte of the file stands for each."""

    def __init__(self) -> None:
        # In memory where the system can, as there need not be a folder that can be written to.
        made = os.fdopen(os.memfd_create("turns"), "wb") if hasattr(os, "memfd_create") else None
        self._file: IO[bytes] = made or tempfile.TemporaryFile()

    def of(self, fd: int) -> Turn:
        return Turn(self._file, fd)
