"""Detection of changed files by polling.

Owns: what distinguishes one state of a file from another, and the polling interval. Must never enter: the
content of files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from gateway.loop.daemon_thread import DaemonThread

#: Seconds between two polls.
INTERVAL = 1.0

Version = tuple[int, ...]


class Refreshable(Protocol):
    """Something that is read from files."""

    @property
    def file_changes(self) -> FileChanges: ...

    def refresh(self) -> None:
        """Read the files again; keep what was read before if they cannot be used. Raises nothing."""
        ...


class FileChanges:
    """The state of some files at the last poll."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._known = self._versions()
        self._settled = False

    def changed(self) -> bool:
        """Return True if a file is, or may be, different from the last poll."""
        now = self._versions()
        if now == self._known and self._settled:
            return False
        # A second change within one tick of the file system's clock is invisible, so each change is reported
        # at two polls.
        self._settled = now == self._known
        self._known = now
        return True

    def retry(self) -> None:
        """Report a change at the next poll: the files could not be used now."""
        self._settled = False

    def _versions(self) -> Sequence[Version]:
        return [_version(path) for path in self._paths]


def _version(path: Path) -> Version:
    """Return what identifies the content of the file behind a symbolic link; () if there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev, found.st_size)


async def keep_fresh(things: Sequence[Refreshable]) -> None:
    """Refresh each of ``things`` when its files change, until cancelled.

    A thread polls, as a network file system can block. The event loop reads the files that changed.
    """
    with closing(DaemonThread("file-changes")) as thread:
        while things:
            await asyncio.sleep(INTERVAL)
            for thing in things:
                if await thread.run(thing.file_changes.changed):
                    thing.refresh()
