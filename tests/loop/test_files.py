"""Files that others may replace by a pipe or a device."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.loop.files import open_regular


def test_pipe_and_device_are_refused_without_blocking(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
    link.unlink()
    link.symlink_to(file)
    file.write_bytes(b"words")
    with open_regular(str(link)) as found:
        assert found.read() == b"words"
