"""A log that is written to very often stays readable, and what is left out is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.telemetry.log_rate_limit import KINDS, WINDOW, LogRateLimit

NAME = "gateway.of-a-flood"


class Kept(logging.Handler):
    """What came through a flood, and the time by which it is measured."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.now = 0.0
        self.lines: list[str] = []
        self.held_back = 0
        self.flood = LogRateLimit(most, lambda: self.now)
        self.flood.on_dropped(self._count)
        self.addFilter(self.flood)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def _count(self) -> None:
        self.held_back += 1


@contextmanager
def kept(most: int) -> Iterator[Kept]:
    logger, handler = logging.getLogger(NAME), Kept(most)
    logger.addHandler(handler)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.propagate = True


def test_lines_of_one_kind_over_the_limit_are_left_out_counted_and_told() -> None:
    """One place that logs is one kind, whatever its lines name; the others go on."""
    log = logging.getLogger(NAME)
    with kept(2) as handler:
        for number in range(5):
            log.warning("worker %s is gone", number)
        log.warning("something else")
        assert handler.lines == ["worker 0 is gone", "worker 1 is gone", "something else"]
        assert handler.held_back == 3
        handler.now = WINDOW
        log.warning("worker %s is gone", 5)
        assert handler.lines[3:] == ["3 more lines in a minute like: worker %s is gone", "worker 5 is gone"]


def test_what_was_left_out_last_is_told_at_the_end() -> None:
    with kept(1) as handler:
        for _ in range(2):
            logging.getLogger(NAME).error("broken")
        handler.flood.close()
        assert handler.lines == ["broken", "1 more lines in a minute like: broken"]
        handler.flood.close()
        assert len(handler.lines) == 2


def test_without_a_limit_all_lines_are_written() -> None:
    with kept(0) as handler:
        for _ in range(1000):
            logging.getLogger(NAME).error("broken")
        assert (len(handler.lines), handler.held_back) == (1000, 0)


def test_place_that_makes_up_its_messages_is_one_kind_all_the_same() -> None:
    """As libraries do: asyncio's handler of exceptions logs all there is in one line of its own."""
    with kept(2) as handler:
        for number in range(5000):
            logging.getLogger(NAME).error(f"made up {number}")  # noqa: G004 - what nobody should do
        assert handler.lines == ["made up 0", "made up 1"]


def test_places_without_end_are_bounded_in_lines_and_in_memory() -> None:
    """Those that are not told apart are one kind, and what is told of it is one line."""
    log = logging.getLogger(NAME)
    with kept(2) as handler:
        for _ in range(3):
            for line in range(5000):
                log.handle(log.makeRecord(NAME, logging.ERROR, "made.py", line, "made", (), None))
        assert len(handler.flood._kinds) <= KINDS + 1
        assert len(handler.lines) == 2 * KINDS + 2
        assert handler.held_back == 3 * 5000 - len(handler.lines)
        del handler.lines[:]
        handler.now = WINDOW
        log.error("later")
        told = [line for line in handler.lines if "more lines in a minute like: made" in line]
        assert handler.lines == [*told, "later"] and len(told) == KINDS + 1


def test_what_is_told_of_the_lines_held_back_is_not_held_back() -> None:
    """Whatever the limit, each kind that was is told of."""
    log = logging.getLogger(NAME)
    with kept(1) as handler:
        for _ in range(2):
            for line in range(3):
                log.handle(log.makeRecord(NAME, logging.ERROR, "made.py", line, "broken", (), None))
        handler.flood.close()
        assert handler.lines == ["broken"] * 3 + ["1 more lines in a minute like: broken"] * 3
