"""Where the lines of ``logging`` go.

Owns: the one handler of the process and how a log line looks. Must never enter: what is logged, the access
log. The standard library's queue listener is not used, as it can neither drop lines nor end while the pipe is
blocked.
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
# These tell about each request or probe what is told elsewhere, or not at all.
_TALKERS = ("httpx", "httpcore", "asyncio")


class Writer(Protocol):
    """Takes lines without their end, and never waits."""

    def put(self, line: bytes, *, soon: bool = False) -> None: ...

    def close(self) -> None: ...


class _LineHandler(logging.Handler):
    def __init__(self, writer: Writer, process: int | None) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(_Formatter(process))

    def emit(self, record: logging.LogRecord) -> None:
        # Formatted here and not in the thread: the arguments may change, or hold a request.
        self._writer.put(self.format(record).encode(errors="backslashreplace"), soon=True)


class _Formatter(logging.Formatter):
    """``<UTC time> LEVEL logger: message``, with ``[process]`` after the level where it is one of several;
    control characters escaped, but for a traceback's line ends."""

    def __init__(self, process: int | None) -> None:
        super().__init__()
        self._process = "" if process is None else f" [{process}]"

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = _CONTROL.sub(lambda match: ascii(match.group())[1:-1], record.getMessage())
        line = f"{time.replace('+00:00', 'Z')} {record.levelname}{self._process} {record.name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class Logs:
    """Sends all logging of the process to ``fd`` while it is open; closing puts things back as they were."""

    def __init__(  # noqa: PLR0913 - what log lines are, and where they go
        self,
        level: str,
        fd: int = _STANDARD_ERROR,
        *,
        most: int = 0,
        writer: Writer | None = None,
        lock: AbstractContextManager[object] | None = None,
        process: int | None = None,
    ) -> None:
        """``level`` is the lower-case name of a level of ``logging``, ``most`` how many lines of one kind are
        written in a minute, 0: all. ``writer`` takes the place of the thread that writes to ``fd``; ``lock``
        is as in LineWriter. ``process`` is named in every line."""
        self._writer: Writer = LineWriter(fd, _CAPACITY, lock) if writer is None else writer
        self.rate_limit = LogRateLimit(most)
        self._handler = _LineHandler(self._writer, process)
        self._handler.addFilter(self.rate_limit)
        root = logging.getLogger()
        self._before = (root.level, root.handlers[:])
        root.handlers[:] = [self._handler]
        root.setLevel(level.upper())
        self._talkers = {logger: logger.level for logger in map(logging.getLogger, _TALKERS)}
        for logger in self._talkers:
            logger.setLevel(logging.WARNING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what is held, for at most a second."""
        root = logging.getLogger()
        if self._handler in root.handlers:
            self.rate_limit.close()
            root.setLevel(self._before[0])
            root.handlers[:] = self._before[1]
            for logger, level in self._talkers.items():
                logger.setLevel(level)
        self._writer.close()
