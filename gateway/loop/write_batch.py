"""Sending what one turn of the event loop writes in one go.

Owns: putting writes off to the end of the turn. Must never enter: what is written, framing, back-pressure.

A send wakes its receiver, and to wake a process costs more than to send. Sent one by one between other work,
each finds its receiver asleep again; sent one after the other, most find it awake. So the first write of a
turn leaves at once, and those after it leave together once the turn's other work is done.

To learn of a turn's end costs another turn. Where turns have one write each, most are left alone, and one in
a few is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

#: So many writes, or bytes, are put off at most: what waits must not wait long, nor take room.
MOST_WRITES = 16
MOST_BYTES = 64 * 1024
#: After so many turns with one write each, only every so-manieth write begins a turn that is looked at.
ALONE, LOOK_EACH = 8, 16


class WriteBatch:
    """One per event loop. All writes to a transport must go through the same one, or come after ``flush``."""

    def __init__(self) -> None:
        self._open = False
        self._held: list[tuple[asyncio.WriteTransport, bytes]] = []
        self._size = 0
        self._several = False
        self._alone = 0
        self._unseen = 0

    def write(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Send ``data`` now or later in this turn; not at all if ``transport`` is closed before."""
        if not self._open:
            if self._alone >= ALONE and self._unseen < LOOK_EACH:
                self._unseen += 1
            else:
                self._open = True
                asyncio.get_running_loop().call_soon(self._end_turn)
            transport.write(data)
            return
        self._several = True
        self._held.append((transport, data))
        self._size += len(data)
        if self._size >= MOST_BYTES or len(self._held) >= MOST_WRITES:
            self.flush()

    def write_parts(self, transport: asyncio.WriteTransport, parts: Sequence[bytes | memoryview]) -> None:
        """Send ``parts`` one behind the other at once, and none is copied: for what is large."""
        self.flush()
        transport.writelines(parts)

    def flush(self) -> None:
        """Send what was put off."""
        held = self._held
        if held:
            self._held = []
            self._size = 0
            for transport, data in held:
                if not transport.is_closing():
                    transport.write(data)

    def _end_turn(self) -> None:
        self._open = False
        self._alone = 0 if self._several else self._alone + 1
        self._several = False
        self._unseen = 0
        self.flush()
