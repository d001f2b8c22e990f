"""A file that several processes write.

Owns: who may write, and that a reader sees the text before a write or the one after it, whenever a writer
dies. Must never enter: what the text means. Its calls may block: they run in threads.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.loop.files import open_regular

#: Seconds between two tries to get the lock.
_LOCK_AGAIN = 0.005

#: Tells one state of a file from another: inode, time of its change in nanoseconds, size in bytes.
FileVersion = tuple[int, int, int]


class LockTimeout(OSError):
    """Others held the lock for as long as was to be waited."""


class SharedFile:
    """The file at ``path``, or where a link there leads. Beside it lie NAME.lock and, while it is written,
    NAME.tmp; whoever holds a lock on the first may write the second."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def stamp(self) -> FileVersion | None:
        """None: there is no file."""
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self) -> bytes | None:
        """Its text; None: there is no file."""
        try:
            with open_regular(self._path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def locked(self, until: float) -> Iterator[None]:
        """Be the only writer. The lock ends with the process. Raises Locked at ``until`` (monotonic time)."""
        lock = os.open(f"{self._path.resolve()}.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while not _take(lock):
                if time.monotonic() >= until:
                    raise LockTimeout("other processes are writing it")
                time.sleep(_LOCK_AGAIN)
            yield
        finally:
            os.close(lock)

    def replace(self, text: bytes) -> None:
        """Write ``text``; it is there, whole, when this returns. Only for who holds the lock."""
        path = self._path.resolve()
        new = Path(f"{path}.tmp")  # one name for all: what a dead writer left is overwritten by the next
        with new.open("wb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # the new name has to survive as well
        finally:
            os.close(folder)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
