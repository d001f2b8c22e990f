"""Lines of one kind are limited in the log, and the number of dropped lines is logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.telemetry.log_rate_limit import KINDS, WINDOW, LogRateLimit

NAME = "gateway.limited"


class LimitedHandler(logging.Handler):
    """The lines that a limit passed, and the clock by which it counts."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.now = 0.0
        self.lines: list[str] = []
        self.dropped = 0
        self.limit = LogRateLimit(limit, lambda: self.now)
        self.limit.on_dropped(self._count)
        self.addFilter(self.limit)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def _count(self) -> None:
        self.dropped += 1


@contextmanager
def limited(limit: int) -> Iterator[LimitedHandler]:
    logger, handler = logging.getLogger(NAME), LimitedHandler(limit)
    logger.addHandler(handler)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.propagate = True


def test_lines_of_one_kind_over_the_limit_are_dropped_counted_and_reported() -> None:
    """Lines of one log statement are of one kind, whatever their arguments; other kinds are not affected."""
    log = logging.getLogger(NAME)
    with limited(2) as handler:
        for number in range(5):
            log.warning("worker %s is gone", number)
        log.warning("something else")
        assert handler.lines == ["worker 0 is gone", "worker 1 is gone", "something else"]
        assert handler.dropped == 3
        handler.now = WINDOW
        log.warning("worker %s is gone", 5)
        assert handler.lines[3:] == ["3 more lines in a minute like: worker %s is gone", "worker 5 is gone"]


def test_last_dropped_lines_are_reported_at_close() -> None:
    with limited(1) as handler:
        for _ in range(2):
            logging.getLogger(NAME).error("broken")
        handler.limit.close()
        assert handler.lines == ["broken", "1 more lines in a minute like: broken"]
        handler.limit.close()
        assert len(handler.lines) == 2


def test_without_a_limit_all_lines_are_written() -> None:
    with limited(0) as handler:
        for _ in range(1000):
            logging.getLogger(NAME).error("broken")
        assert (len(handler.lines), handler.dropped) == (1000, 0)


def test_statement_that_formats_its_messages_itself_is_one_kind() -> None:
    """Libraries do so: the exception handler of asyncio formats its message before it logs."""
    with limited(2) as handler:
        for number in range(5000):
            logging.getLogger(NAME).error(f"made up {number}")  # noqa: G004 - the case under test
        assert handler.lines == ["made up 0", "made up 1"]


def test_any_number_of_kinds_is_bounded_in_lines_and_in_memory() -> None:
    """Kinds over the limit are counted as one kind, and one line reports them."""
    log = logging.getLogger(NAME)
    with limited(2) as handler:
        for _ in range(3):
            for line in range(5000):
                log.handle(log.makeRecord(NAME, logging.ERROR, "made.py", line, "made", (), None))
        assert len(handler.limit._kinds) <= KINDS + 1
        assert len(handler.lines) == 2 * KINDS + 2
        assert handler.dropped == 3 * 5000 - len(handler.lines)
        del handler.lines[:]
        handler.now = WINDOW
        log.error("later")
        reports = [line for line in handler.lines if "more lines in a minute like: made" in line]
        assert handler.lines == [*reports, "later"] and len(reports) == KINDS + 1


def test_reports_of_dropped_lines_are_never_dropped() -> None:
    log = logging.getLogger(NAME)
    with limited(1) as handler:
        for _ in range(2):
            for line in range(3):
                log.handle(log.makeRecord(NAME, logging.ERROR, "made.py", line, "broken", (), None))
        handler.limit.close()
        assert handler.lines == ["broken"] * 3 + ["1 more lines in a minute like: broken"] * 3
