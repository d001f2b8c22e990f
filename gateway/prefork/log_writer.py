"""The supervisor's own log lines.

Owns: writing them without a thread, as a process that has threads must not fork, and without ever waiting.
Must never enter: what a line says.
"""

from __future__ import annotations

import os
import select
from collections import deque

from gateway.prefork.locks import WriteLock

#: What a pipe takes in one piece if it takes anything; a longer line is cut.
_LONGEST = select.PIPE_BUF
#: Lines kept while they cannot be written; the oldest are dropped.
_CAPACITY = 1000


class LogWriter:
    """Lines for ``fd``, which other processes write to while they hold ``lock``."""

    def __init__(self, fd: int, lock: WriteLock) -> None:
        self._fd = fd
        self._lock = lock
        self._lines: deque[bytes] = deque(maxlen=_CAPACITY)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._lines)

    def put(self, line: bytes, *, soon: bool = False) -> None:
        """Write ``line`` now if that is possible, else at the next ``flush``."""
        self._lines.append(line[: _LONGEST - 1] + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write what can be written now. A descriptor that is broken takes nothing and says so to nobody."""
        try:
            while self._lines and self._writable() and self._lock.take_now():
                try:
                    os.write(self._fd, self._lines.popleft())
                finally:
                    self._lock.give_back()
        except OSError:
            self._lines.clear()

    def close(self) -> None:
        """The last chance for what waits."""
        self.flush()

    def _writable(self) -> bool:
        return bool(select.select([], [self._fd], [], 0)[1])
