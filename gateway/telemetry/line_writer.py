"""A writer of lines to a file descriptor that never blocks the event loop.

Owns: the buffer between the event loop and a pipe that may be blocked, and the thread that empties the
buffer. Must never enter: what a line contains.

The thread writes a batch every ``_PAUSE`` seconds, because waking a thread costs more than a line does. It
writes to the descriptor directly: the lock of a buffered stream, held by a blocked thread, would break the
shutdown of the interpreter.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

#: Most lines in the buffer, when the reader of the pipe does not keep up; further lines are dropped and
#: counted.
CAPACITY = 16_384

_PAUSE = 0.1
_BATCH = 1024
#: Errors that end once there is room on the disk again.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class LineWriter:
    """A bounded buffer of lines and the thread that writes them.

    Lines are passed in encoded and without a line end: a thread that encoded a batch would hold the
    interpreter lock, and so the event loop, for that time. No method raises or blocks. If the descriptor
    cannot be written to any more, all lines are dropped; if its disk is full, those until there is room.
    """

    def __init__(
        self,
        fd: int,
        capacity: int = CAPACITY,
        lock: AbstractContextManager[object] | None = None,
        on_failure: Callable[[OSError], None] | None = None,
    ) -> None:
        """Hold ``lock`` while a batch is written, as other processes may write to the same descriptor.

        The thread calls ``on_failure`` with the first error, and again only after a batch was written.
        """
        self._fd = fd
        self._on_failure = on_failure
        self._failing = False
        #: The last line that was written has no end.
        self._cut = False
        self._capacity = capacity
        self._lock: AbstractContextManager[object] = nullcontext() if lock is None else lock
        self._items: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._broken = False
        self._dropped = 0
        # Not `_thread`: in C, mypyc prefixes an underscore, and `__thread` is a keyword of gcc.
        self._writer_thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """The number of lines lost so far, because the buffer was full or they could not be written."""
        return self._dropped

    def put(self, line: bytes, *, soon: bool = False) -> None:
        """Add one line to the buffer; ``soon`` wakes the thread at once instead of with the next batch."""
        if self._broken or len(self._items) >= self._capacity:
            self._dropped += 1
            return
        self._items.append(line)
        if self._writer_thread is None:
            self._writer_thread = threading.Thread(target=self._run, name=f"lines to {self._fd}", daemon=True)
            self._writer_thread.start()
        if soon:
            self._wake.set()

    def close(self, seconds: float = 1.0) -> None:
        """Write the buffered lines, for at most ``seconds``, and end the thread."""
        self._closing = True
        self._wake.set()
        if self._writer_thread is not None:
            self._writer_thread.join(seconds)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_PAUSE)
            self._wake.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._items and not self._broken:
            count = min(len(self._items), _BATCH)
            lines = [self._items.popleft() for _ in range(count)]
            try:
                with self._lock:
                    self._write(b"\n" * self._cut + b"\n".join(lines) + b"\n")
            except OSError as error:
                self._fail(error, count)
            else:
                self._failing = False

    def _fail(self, error: OSError, lost: int) -> None:
        self._dropped += lost
        if error.errno not in _FULL:
            self._broken = True
            self._dropped += len(self._items)
            self._items.clear()
        if not self._failing and self._on_failure is not None:
            self._on_failure(error)
        self._failing = True

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                # Two statements, because mypyc evaluates the bounds of some slices twice.
                written = os.write(self._fd, view)
                view = view[written:]
                self._cut = bool(view)
            except BlockingIOError:
                # Another process made the descriptor non-blocking. This thread may wait.
                select.select([], [self._fd], [])
