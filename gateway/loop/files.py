"""Opening files that others create, without ever blocking on one.

Owns: refusing pipes and devices. Must never enter: the content of a file.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO


def open_regular(path: Path | str) -> BinaryIO:
    """Open the file at ``path``, or at the end of a link there, for reading.

    Raises OSError, also for a pipe or a device: opening or reading one could block for ever.
    """
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file
