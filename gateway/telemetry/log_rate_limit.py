"""A limit on how many log lines of one kind are written in a minute.

Owns: the count of lines by kind, and the line that reports how many were dropped. Must never enter: the
layout of a line, where it is written.

It keeps the log readable, and its disk free, when one thing fails very often. Two lines are of one kind if
the same statement of the program logs them; their arguments may differ. There are as many kinds as log
statements, those of libraries included, and at most KINDS + 1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds for which lines of one kind are counted.
WINDOW = 60.0
#: Kinds that are counted separately. All further ones are counted as one kind, so that memory is bounded.
KINDS = 256

#: Identifies a log statement: logger, level, and the message without its arguments. A message without
#: arguments may have been formatted before, so file and line are used instead. (In the compiled build these
#: may be the file and line of a caller.)
_Statement = tuple[str, int, str]
_REST: _Statement = ("", 0, "")


@dataclass(slots=True)
class _Kind:
    """The logger, level and message (without arguments) of the first line of a kind, and its count."""

    name: str
    level: int
    message: str
    count: int = 0


class LogRateLimit(logging.Filter):
    """A logging filter that passes ``limit`` lines of each kind in a window of WINDOW seconds; 0: all lines.

    For each kind of which lines were dropped, one more line reports how many. It is written with the first
    line of any kind after the window, or at ``close``.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limit = limit
        self._clock = clock
        self._window_ends = clock() + WINDOW
        self._kinds: dict[_Statement, _Kind] = {}
        self._notify: Callable[[], None] = lambda: None

    def on_dropped(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` for each line that is dropped from now on."""
        self._notify = notify

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._limit or isinstance(record.msg, _DroppedLines):
            return True
        if self._clock() >= self._window_ends:
            self.close()
        kind = self._kind_of(record)
        kind.count += 1
        if kind.count > self._limit:
            self._notify()
        return kind.count <= self._limit

    def close(self) -> None:
        """Begin a new window, and log how many lines were dropped in the last one."""
        kinds, self._kinds = self._kinds, {}
        self._window_ends = self._clock() + WINDOW
        for kind in kinds.values():
            if kind.count > self._limit:
                dropped = kind.count - self._limit
                logging.getLogger(kind.name).log(kind.level, _DroppedLines(dropped, kind.message))

    def _kind_of(self, record: logging.LogRecord) -> _Kind:
        text = str(record.msg) if record.args else f"{record.pathname}:{record.lineno}"
        statement = (record.name, record.levelno, text)
        kind = self._kinds.get(statement)
        if kind is None:
            if len(self._kinds) >= KINDS:
                statement = _REST
            kind = self._kinds.setdefault(statement, _Kind(record.name, record.levelno, str(record.msg)))
        return kind


@dataclass(frozen=True, slots=True)
class _DroppedLines:
    """The message that reports dropped lines; it is never dropped itself."""

    count: int
    message: str

    def __str__(self) -> str:
        return f"{self.count} more lines in a minute like: {self.message}"
