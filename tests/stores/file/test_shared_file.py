"""A file that several processes write."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gateway.stores.file.shared_file import LockTimeout, SharedFile


def test_lock_is_for_one_at_a_time(path: Path) -> None:
    """Gives up when it was to, and is free again after the block, whatever happened in it."""
    with pytest.raises(ValueError), SharedFile(path).locked(0):
        with pytest.raises(LockTimeout), SharedFile(path).locked(time.monotonic() + 0.05):
            raise AssertionError("two at once")
        raise ValueError
    with SharedFile(path).locked(0):
        pass


def test_stamp_tells_a_new_text_from_the_old(path: Path) -> None:
    disk = SharedFile(path)
    assert (disk.version(), disk.read()) == (None, None)
    disk.replace(b"one")
    first = disk.version()
    assert first == disk.version() is not None
    disk.replace(b"two")
    assert disk.version() != first
    assert disk.read() == b"two"


def test_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    """A thread that waits for a pipe's writer would keep the process from ending."""
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        SharedFile(path).read()


def test_replace_keeps_mode_and_link(tmp_path: Path) -> None:
    """A link leads where it did, and who could read the file still can."""
    target, link = tmp_path / "deep" / "target", tmp_path / "link"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    disk = SharedFile(link)
    with disk.locked(0):
        disk.replace(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(file.name for file in tmp_path.iterdir()) == ["deep", "link"]
