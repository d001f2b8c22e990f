"""Sending the writes of one iteration of the event loop together.

Owns: delaying writes to the end of the iteration. Must never enter: what is written, framing, back-pressure.

A send wakes the process that receives it, and waking a process costs more than sending. If writes are mixed
with other work, each finds its receiver asleep again; sent one after another, most find it awake. So the
first write of an iteration is sent at once, and those after it together when the other work of the iteration
is done.

Noticing the end of an iteration costs another iteration. Where iterations have one write each, only one write
in SAMPLE_INTERVAL begins an iteration whose end is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

#: Writes and bytes that are delayed at most, to bound latency and memory.
MAX_WRITES = 16
MAX_BYTES = 64 * 1024
#: After SINGLE_WRITES iterations with one write each, one write in SAMPLE_INTERVAL is sampled.
SINGLE_WRITES, SAMPLE_INTERVAL = 8, 16


class WriteBatch:
    """The delayed writes of one event loop.

    All writes to a transport go through the same batch, or come after ``flush``.
    """

    def __init__(self) -> None:
        #: The first write of this iteration was sent, and the end of the iteration will be noticed.
        self._open = False
        self._delayed: list[tuple[asyncio.WriteTransport, bytes]] = []
        self._size = 0
        self._several = False
        #: Iterations in succession that had one write, and writes since then that were not sampled.
        self._single = 0
        self._unsampled = 0

    def write(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Send ``data`` now or later in this iteration; drop it if ``transport`` is closed before."""
        if not self._open:
            if self._single >= SINGLE_WRITES and self._unsampled < SAMPLE_INTERVAL:
                self._unsampled += 1
            else:
                self._open = True
                asyncio.get_running_loop().call_soon(self._end_iteration)
            transport.write(data)
            return
        self._several = True
        self._delayed.append((transport, data))
        self._size += len(data)
        if self._size >= MAX_BYTES or len(self._delayed) >= MAX_WRITES:
            self.flush()

    def write_parts(self, transport: asyncio.WriteTransport, parts: Sequence[bytes | memoryview]) -> None:
        """Send ``parts`` one after another at once without copying them: for large writes."""
        self.flush()
        transport.writelines(parts)

    def flush(self) -> None:
        """Send the delayed writes."""
        delayed = self._delayed
        if delayed:
            self._delayed = []
            self._size = 0
            for transport, data in delayed:
                if not transport.is_closing():
                    transport.write(data)

    def _end_iteration(self) -> None:
        self._open = False
        self._single = 0 if self._several else self._single + 1
        self._several = False
        self._unsampled = 0
        self.flush()
