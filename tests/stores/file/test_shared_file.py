"""A file that several processes write."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from gateway.stores.file.shared_file import LockTimeout, SharedFile


def test_lock_is_held_by_one_at_a_time(path: Path) -> None:
    """Others fail at their deadline. It is free after the block, whatever was raised in it."""
    with pytest.raises(ValueError), SharedFile(path).locked(0):
        with pytest.raises(LockTimeout), SharedFile(path).locked(time.monotonic() + 0.05):
            raise AssertionError("two at once")
        raise ValueError
    with SharedFile(path).locked(0):
        pass


def test_named_pipe_is_an_error(path: Path) -> None:
    """A thread that opens one would block until there is a writer."""
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        SharedFile(path).read()


def test_replace_keeps_mode_and_symbolic_link_and_changes_the_version(tmp_path: Path) -> None:
    target, link = tmp_path / "deep" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    file = SharedFile(link)
    assert (file.version(), file.read()) == (None, None)
    target.write_text("old")
    target.chmod(0o640)
    first = file.version()
    assert first == file.version() is not None
    with file.locked(0):
        file.replace(b"new")
    assert file.version() != first and file.read() == b"new"
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["deep", "link"]


@pytest.mark.parametrize(("module", "name"), [(os, "fsync"), (os, "fchmod"), (Path, "replace")])
def test_failed_write_leaves_the_file_and_nothing_beside_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    """As on a full disk."""
    path.write_bytes(b"old")
    file = SharedFile(path)
    with file.locked(0), monkeypatch.context() as patch:
        patch.setattr(module, name, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            file.replace(b"new")
    assert file.read() == b"old"
    assert sorted(each.name for each in path.parent.iterdir()) == [path.name, f"{path.name}.lock"]
