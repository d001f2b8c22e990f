"""A file that several processes read and write.

Owns: the lock of writers, and atomic replacement: a reader gets the text before or after a write, even if the
writer is killed. Must never enter: what the text means. All calls may block, so they run in threads.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.loop.files import open_regular

#: Seconds between two attempts to get the lock.
_LOCK_RETRY = 0.005

#: What distinguishes one content of a file from another: inode, modification time in nanoseconds, bytes.
FileVersion = tuple[int, int, int]


class LockTimeout(OSError):
    """A lock that other processes held until the deadline."""


class SharedFile:
    """The file at ``path``, or the one that a symbolic link there points to.

    Beside it are NAME.lock and, during a write, NAME.tmp; whoever has locked the first may write the second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def version(self) -> FileVersion | None:
        """Return the version of the file; None: there is no file."""
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self) -> bytes | None:
        """Return the content of the file; None: there is no file."""
        try:
            with open_regular(self._path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def locked(self, until: float) -> Iterator[None]:
        """Hold the lock during the block; it ends with the process. Raises LockTimeout at ``until``
        (monotonic time)."""
        lock = os.open(f"{self._path.resolve()}.lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while not _try_lock(lock):
                if time.monotonic() >= until:
                    raise LockTimeout("other processes are writing it")
                time.sleep(_LOCK_RETRY)
            yield
        finally:
            os.close(lock)

    def replace(self, text: bytes) -> None:
        """Replace the content by ``text``, which is on disk when this returns. Requires the lock."""
        path = self._path.resolve()
        new = Path(f"{path}.tmp")  # always this name, so that the file of a killed writer is overwritten
        try:
            with new.open("wb") as file:
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), path.stat().st_mode)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)  # of a failed write, as on a full disk
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # the rename must survive a crash of the system as well
        finally:
            os.close(folder)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
