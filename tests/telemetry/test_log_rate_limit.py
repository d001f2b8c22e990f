"""Lines of one kind are limited in the log, and the number of dropped lines is logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.telemetry.log_rate_limit import KINDS, WINDOW, LogRateLimit

LOG = logging.getLogger("gateway.limited")


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
    handler = LimitedHandler(limit)
    LOG.addHandler(handler)
    LOG.propagate = False
    yield handler
    LOG.removeHandler(handler)
    LOG.propagate = True


def log_of_statements(count: int, text: str) -> None:
    """Log one line from each of ``count`` log statements."""
    for line in range(count):
        LOG.handle(LOG.makeRecord(LOG.name, logging.ERROR, "made.py", line, text, (), None))


def test_lines_of_one_kind_over_the_limit_are_dropped_counted_and_reported() -> None:
    """Lines of one log statement are of one kind, whatever their arguments; other kinds are not affected."""
    with limited(2) as handler:
        for number in range(5):
            LOG.warning("worker %s is gone", number)
        LOG.warning("something else")
        assert handler.lines == ["worker 0 is gone", "worker 1 is gone", "something else"]
        assert handler.dropped == 3
        handler.now = WINDOW
        LOG.warning("worker %s is gone", 5)
        assert handler.lines[3:] == ["3 more lines in a minute like: worker %s is gone", "worker 5 is gone"]


def test_last_dropped_lines_are_reported_once_at_close() -> None:
    """No report is dropped."""
    with limited(1) as handler:
        for _ in range(2):
            log_of_statements(3, "broken")
        for _ in range(2):
            handler.limit.close()
        assert handler.lines == ["broken"] * 3 + ["1 more lines in a minute like: broken"] * 3


def test_without_a_limit_all_lines_are_written() -> None:
    with limited(0) as handler:
        for _ in range(1000):
            LOG.error("broken")
        assert (len(handler.lines), handler.dropped) == (1000, 0)


def test_statement_that_formats_its_messages_itself_is_one_kind() -> None:
    """Libraries do so: the exception handler of asyncio formats its message before it logs."""
    with limited(2) as handler:
        for number in range(5000):
            LOG.error(f"made up {number}")  # noqa: G004 - the case under test
        assert handler.lines == ["made up 0", "made up 1"]


def test_any_number_of_kinds_is_bounded_in_lines_and_in_memory() -> None:
    """Kinds over the limit are counted as one kind, and one line reports them."""
    with limited(2) as handler:
        for _ in range(3):
            log_of_statements(5000, "made")
        assert len(handler.limit._kinds) <= KINDS + 1
        assert len(handler.lines) == 2 * KINDS + 2
        assert handler.dropped == 3 * 5000 - len(handler.lines)
        del handler.lines[:]
        handler.now = WINDOW
        LOG.error("later")
        reports = [line for line in handler.lines if "more lines in a minute like: made" in line]
        assert handler.lines == [*reports, "later"] and len(reports) == KINDS + 1
