"""The handler of all ``logging`` of the process.

Owns: the one handler of the process and the layout of a log line. Must never enter: what is logged, the
access log. The queue listener of the standard library is not used, because it can neither drop lines nor end
while the pipe is blocked.
"""

from __future__ import annotations

import logging
import re
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self

from gateway.telemetry.line_writer import LineWriter
from gateway.telemetry.log_rate_limit import LogRateLimit

_STANDARD_ERROR = 2
_CAPACITY = 10_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Loggers of libraries that log every request or probe; the gateway logs these itself where it matters.
_VERBOSE_LOGGERS = ("httpx", "httpcore", "asyncio")


class Writer(Protocol):
    """An object that takes lines without their line end and never blocks."""

    def put(self, line: bytes, *, soon: bool = False) -> None: ...

    def close(self) -> None: ...


class _LineHandler(logging.Handler):
    def __init__(self, writer: Writer, process: int | None) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(_Formatter(process))

    def emit(self, record: logging.LogRecord) -> None:
        # Formatted here and not in the thread: the arguments may change later, or hold a request in memory.
        self._writer.put(self.format(record).encode(errors="backslashreplace"), soon=True)


class _Formatter(logging.Formatter):
    """The layout ``<UTC time> LEVEL logger: message``.

    The level is followed by ``[process]`` if there are several processes. Control characters are escaped,
    except the line ends of a traceback.
    """

    def __init__(self, process: int | None) -> None:
        super().__init__()
        self._process = "" if process is None else f" [{process}]"

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = _CONTROL.sub(lambda match: ascii(match.group())[1:-1], record.getMessage())
        line = f"{time.replace('+00:00', 'Z')} {record.levelname}{self._process} {record.name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class Logs:
    """All logging of the process, sent to ``fd`` until ``close``, which restores the earlier handlers."""

    def __init__(  # noqa: PLR0913 - the options of a log
        self,
        level: str,
        fd: int = _STANDARD_ERROR,
        *,
        lines_per_minute: int = 0,
        writer: Writer | None = None,
        lock: AbstractContextManager[object] | None = None,
        process: int | None = None,
    ) -> None:
        """Take over the root logger.

        ``level`` is the lower-case name of a level of ``logging``. ``lines_per_minute`` limits the lines of
        one kind, 0 for no limit. ``writer`` replaces the thread that writes to ``fd``. ``lock`` is as in
        LineWriter. ``process`` is written in every line.
        """
        self._writer: Writer = LineWriter(fd, _CAPACITY, lock) if writer is None else writer
        self.rate_limit = LogRateLimit(lines_per_minute)
        self._handler = _LineHandler(self._writer, process)
        self._handler.addFilter(self.rate_limit)
        root = logging.getLogger()
        self._replaced = (root.level, root.handlers[:])
        root.handlers[:] = [self._handler]
        root.setLevel(level.upper())
        self._library_levels = {logger: logger.level for logger in map(logging.getLogger, _VERBOSE_LOGGERS)}
        for logger in self._library_levels:
            logger.setLevel(logging.WARNING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write the buffered lines, for at most one second, and restore the earlier handlers."""
        root = logging.getLogger()
        if self._handler in root.handlers:
            self.rate_limit.close()
            root.setLevel(self._replaced[0])
            root.handlers[:] = self._replaced[1]
            for logger, level in self._library_levels.items():
                logger.setLevel(level)
        self._writer.close()
