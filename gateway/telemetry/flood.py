"""Keeping a log readable, and its disk free, when one thing goes wrong very often.

Owns: how many lines of one kind are let through in a minute, and what is said of the rest. Must never enter:
how a line looks, where it goes.

Lines are of one kind when one place in the program writes them: what they name differs, and is not looked at.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

#: Seconds in which lines of one kind are counted together.
WINDOW = 60.0
#: Kinds that are told apart; there are as many as places that log, of libraries too.
KINDS = 1024

_Kind = tuple[str, int, str]


class Flood(logging.Filter):
    """Lets ``most`` lines of each kind through in a window; 0: all.

    What is held back is told at the next line after its window, whatever kind that is of, and at ``close``.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._window_ends = clock() + WINDOW
        self._counts: dict[_Kind, int] = {}
        #: Told of each line that is held back.
        self.held_back: Callable[[], None] = lambda: None

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._most:
            return True
        if self._clock() >= self._window_ends:
            self.close()
        kind = (record.name, record.levelno, str(record.msg))
        count = self._counts.get(kind, 0) + 1
        if count > 1 or len(self._counts) < KINDS:
            self._counts[kind] = count
        if count > self._most:
            self.held_back()
        return count <= self._most

    def close(self) -> None:
        """Begin a new window, and tell what was held back in the last one."""
        counts, self._counts = self._counts, {}
        self._window_ends = self._clock() + WINDOW
        for (name, level, message), count in counts.items():
            if count > self._most:
                more = count - self._most
                logging.getLogger(name).log(level, "%d more lines in a minute like: %s", more, message)
