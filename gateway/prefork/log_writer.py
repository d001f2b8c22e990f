"""The writer of the supervisor's log lines.

Owns: writing lines without a thread, as a process with threads must not fork, and without blocking. Must
never enter: what a line says.
"""

from __future__ import annotations

import os
import select
from collections import deque

from gateway.prefork.locks import WriteLock

#: Bytes that a pipe takes in one write or not at all; a longer line is truncated.
_MAX_LINE = select.PIPE_BUF
#: Lines kept while they cannot be written; the oldest are dropped.
_CAPACITY = 1000


class LogWriter:
    """A writer of lines to ``fd``, to which other processes write while they have ``lock``.

    Its length is the number of lines that are not written yet.
    """

    def __init__(self, fd: int, lock: WriteLock) -> None:
        self._fd = fd
        self._lock = lock
        self._lines: deque[bytes] = deque(maxlen=_CAPACITY)

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, line: bytes, *, soon: bool = False) -> None:
        """Write ``line`` now if that is possible, otherwise at the next ``flush``."""
        self._lines.append(line[: _MAX_LINE - 1] + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write what can be written now. Lines for a broken descriptor are dropped."""
        try:
            while self._lines and select.select([], [self._fd], [], 0)[1] and self._lock.try_acquire():
                try:
                    os.write(self._fd, self._lines.popleft())
                finally:
                    self._lock.release()
        except OSError:
            self._lines.clear()

    def close(self) -> None:
        """Write what can still be written."""
        self.flush()
