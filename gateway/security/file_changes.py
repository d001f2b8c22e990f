"""Whether files changed, and looking again and again.

Owns: what tells one state of a file from another, and the pace of looking. Must never enter: what is in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from gateway.loop.daemon_thread import DaemonThread

#: Seconds between two looks.
INTERVAL = 1.0

Stamp = tuple[int, ...]


class Refreshable(Protocol):
    """Something made of files."""

    @property
    def file_changes(self) -> FileChanges: ...

    def refresh(self) -> None:
        """Take what the files hold now, or keep what there was. Raises nothing."""
        ...


class FileChanges:
    """The state of some files, as of the last look."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._seen = self._now()
        self._settled = False

    def changed(self) -> bool:
        """Whether a file is not, or may not be, what it was at the last look."""
        now = self._now()
        if now == self._seen and self._settled:
            return False
        # Two changes within one tick of the file system's clock look like one: so a change counts twice.
        self._settled = now == self._seen
        self._seen = now
        return True

    def again(self) -> None:
        """What was read now could not be used: look at it anew the next time."""
        self._settled = False

    def _now(self) -> Sequence[Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Stamp:
    """Of the file behind a symbolic link; () where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev, found.st_size)


async def keep_fresh(things: Sequence[Refreshable]) -> None:
    """Refresh each of ``things`` once its files changed, until cancelled.

    The looks are made in a thread, as files of a network can hang; the reading, on the event loop.
    """
    with closing(DaemonThread("file-stamps")) as thread:
        while things:
            await asyncio.sleep(INTERVAL)
            for thing in things:
                if await thread.run(thing.file_changes.changed):
                    thing.refresh()
