"""The folder of the file that the processes of one gateway share.

Owns: where it is, its removal, and the removal of those that killed gateways have left. Must never enter:
what the file means.

A gateway that is ended by SIGKILL removes nothing, and a folder in memory would stay until the machine is
restarted. So each gateway removes what others have left, but only where no process lives any more. Ids of
processes do not show that: they are given again, and containers that share a folder number theirs apart. The
lock of a file does: it belongs to the gateway and its processes, and ends with the last of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR
from tempfile import TemporaryDirectory

#: A folder in memory. A container has it even if its file system is read-only.
MEMORY = "/dev/shm"
PREFIX = "tito-gateway-"
#: The file in each folder that is locked by its owner.
LOCK = "owner.lock"


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Yield a new folder, in memory if possible, which is removed at the end.

    Raises OSError if neither MEMORY nor the folder for temporary files can be written to.
    """
    with _new_folder() as name:
        folder = Path(name)
        lock = _lock(folder)
        try:
            yield folder
        finally:
            os.close(lock)


def _new_folder() -> TemporaryDirectory[str]:
    try:
        remove_abandoned(Path(MEMORY))
        return TemporaryDirectory(prefix=PREFIX, dir=MEMORY)
    except OSError:
        remove_abandoned(Path(tempfile.gettempdir()))
        return TemporaryDirectory(prefix=PREFIX)


def _lock(folder: Path) -> int:
    """Lock ``folder`` for as long as the descriptor that this returns is open, in any process."""
    # It gets its name when it is locked: nobody finds it unlocked before.
    new = folder / f"{LOCK}.new"
    lock = os.open(new, os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / LOCK)
    return lock


def remove_abandoned(parent: Path) -> None:
    """Remove the folders in ``parent`` that gateways of this user have left."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else removes it
            found = folder.lstat()
            own = S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if own and _is_abandoned(folder):
                shutil.rmtree(folder)


def _is_abandoned(folder: Path) -> bool:
    """Return True if nobody holds the lock of ``folder``; False if there is none, as in a new folder."""
    lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
