"""Writing lines to a file descriptor without ever making the event loop wait.

Owns: the buffer between the loop and a pipe that may be blocked, and the thread that empties it. Must never
enter: what a line says.

Lines are handed over in batches every ``_PAUSE`` seconds, as waking a thread costs more than a line does. The
descriptor is written to directly: a buffered stream's lock, held by a blocked thread, would break the
interpreter's shutdown.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext

#: Lines held while the reader of the pipe does not keep up; the next ones are dropped and counted.
CAPACITY = 16_384

_PAUSE = 0.1
_BATCH = 1024


class LineWriter:
    """A bounded buffer and the thread that writes it. Lines come without their end.

    They come encoded, as a thread that encoded a batch of them would keep the event loop from running for as
    long. Never raises and never blocks; a descriptor that cannot be written to any more drops everything.
    """

    def __init__(
        self, fd: int, capacity: int = CAPACITY, lock: AbstractContextManager[object] | None = None
    ) -> None:
        """``lock`` is held while a batch is written: other processes may write to the same descriptor."""
        self._fd = fd
        self._capacity = capacity
        self._lock: AbstractContextManager[object] = nullcontext() if lock is None else lock
        self._items: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._broken = False
        self._dropped = 0
        self._writing: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Lines lost so far, for want of room or because the descriptor broke."""
        return self._dropped

    def put(self, line: bytes, *, soon: bool = False) -> None:
        """Hand one line over; ``soon`` wakes the writer instead of waiting for the next batch."""
        if self._broken or len(self._items) >= self._capacity:
            self._dropped += 1
            return
        self._items.append(line)
        if self._writing is None:
            self._writing = threading.Thread(target=self._run, name=f"lines to {self._fd}", daemon=True)
            self._writing.start()
        if soon:
            self._wake.set()

    def close(self, seconds: float = 1.0) -> None:
        """Write what is held, for at most ``seconds``, and end the thread."""
        self._closing = True
        self._wake.set()
        if self._writing is not None:
            self._writing.join(seconds)

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
                    self._write(b"\n".join(lines) + b"\n")
            except OSError:
                self._broken = True
                self._dropped += count + len(self._items)
                self._items.clear()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                # Two lines: mypyc computes the bounds of some slices twice.
                written = os.write(self._fd, view)
                view = view[written:]
            except BlockingIOError:
                # Somebody else made the descriptor non-blocking; this thread may wait.
                select.select([], [self._fd], [])
