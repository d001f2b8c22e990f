"""Files that others put there, read without ever waiting for one.

Owns: opening what may be a pipe by now, and standard streams that are closed. Must never enter: what is in a
file.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

_STANDARD = (0, 1, 2)


def open_regular(path: Path | str) -> BinaryIO:
    """The file at ``path``, or where a link there leads, to be read. Raises OSError, for a pipe or a device,
    too: to open one, or to read it, might never end."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def fill_standard_streams() -> None:
    """Let standard streams that this process was started without lead nowhere.

    Else the next sockets would have their numbers, and log lines would be written to whoever is at the other
    end.
    """
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, True)
