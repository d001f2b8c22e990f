"""Files that are pipes, and standard streams that are closed."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from gateway.files import open_regular


def test_pipe_and_device_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Behind a link, too; a file behind a link is read."""
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


_OPENED = """
import os, socket
from gateway.files import fill_standard_streams
fill_standard_streams()
with socket.socket() as sock:
    os.write({tells}, b"%d" % sock.fileno())
"""


def _close(numbers: tuple[int, ...]) -> None:
    for number in numbers:
        os.close(number)


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1), (1, 2), (0, 1, 2)])
def test_no_socket_gets_the_number_of_a_standard_stream(closed: tuple[int, ...]) -> None:
    """Whichever were closed; what is written to them leads nowhere."""
    ours, tells = os.pipe()
    with open(ours, "rb") as said:
        subprocess.run(
            [sys.executable, "-c", _OPENED.format(tells=tells)],
            pass_fds=[tells],
            preexec_fn=partial(_close, closed),
            check=True,
        )
        os.close(tells)
        assert int(said.read()) > 2
