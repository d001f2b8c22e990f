"""Files that others put there, read without ever waiting for one.

Owns: opening what may be a pipe by now. Must never enter: what is in a file.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO


def open_regular(path: Path | str) -> BinaryIO:
    """The file at ``path``, or where a link there leads, to be read. Raises OSError, for a pipe or a device,
    too: to open one, or to read it, might never end."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file
