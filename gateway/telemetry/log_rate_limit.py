"""Keeping a log readable, and its disk free, when one thing goes wrong very often.

Owns: how many lines of one kind are let through in a minute, and what is said of the rest. Must never enter:
how a line looks, where it goes.

Lines are of one kind when one place in the program writes them: what they name differs, and is not looked at.
So there are as many kinds as places that log, of libraries too, and no more than KINDS and one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds in which lines of one kind are counted together.
WINDOW = 60.0
#: Kinds that are told apart. All others are one more, so that neither they nor their lines are without end.
KINDS = 256

#: Logger, level, and what stands at the place: the message without what it names. Where it names nothing it
#: may have been made up before, and file and line stand for it. (Not always these: in the compiled build they
#: are those of a caller.)
_Place = tuple[str, int, str]
_REST: _Place = ("", 0, "")


@dataclass(slots=True)
class _Kind:
    """``name``, ``level`` and ``message`` are those of its first line, the message without what it names."""

    name: str
    level: int
    message: str
    count: int = 0


class LogRateLimit(logging.Filter):
    """Lets ``most`` lines of each kind through in a window; 0: all.

    What is held back is told at the next line after its window, whatever kind that is of, and at ``close``:
    one line more for each kind.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._window_ends = clock() + WINDOW
        self._kinds: dict[_Place, _Kind] = {}
        self._notify: Callable[[], None] = lambda: None

    def on_dropped(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` for each line that is dropped from now on."""
        self._notify = notify

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._most or isinstance(record.msg, _DroppedLines):
            return True
        if self._clock() >= self._window_ends:
            self.close()
        kind = self._kind_of(record)
        kind.count += 1
        if kind.count > self._most:
            self._notify()
        return kind.count <= self._most

    def close(self) -> None:
        """Begin a new window, and tell what was held back in the last one."""
        kinds, self._kinds = self._kinds, {}
        self._window_ends = self._clock() + WINDOW
        for kind in kinds.values():
            if kind.count > self._most:
                more = kind.count - self._most
                logging.getLogger(kind.name).log(kind.level, _DroppedLines(more, kind.message))

    def _kind_of(self, record: logging.LogRecord) -> _Kind:
        what = str(record.msg) if record.args else f"{record.pathname}:{record.lineno}"
        place = (record.name, record.levelno, what)
        kind = self._kinds.get(place)
        if kind is None:
            if len(self._kinds) >= KINDS:
                place = _REST
            kind = self._kinds.setdefault(place, _Kind(record.name, record.levelno, str(record.msg)))
        return kind


@dataclass(frozen=True, slots=True)
class _DroppedLines:
    """The message of a line that tells what was held back, and is not held back itself."""

    more: int
    message: str

    def __str__(self) -> str:
        return f"{self.more} more lines in a minute like: {self.message}"
