"""Sending what one turn of the event loop writes in one go.

Owns: putting writes off to the end of the turn. Must never enter: what is written, framing, back-pressure.

A send wakes its receiver, and to wake a process costs more than to send. Sent one by one between other work,
each finds its receiver asleep again; sent one after the other, most find it awake. So the first write of a
turn leaves at once, and those after it leave together once the turn's other work is done.
"""

from __future__ import annotations

import asyncio

#: So many writes, or bytes, are put off at most: what waits must not wait long, nor take room.
MOST_WRITES = 16
MOST_BYTES = 64 * 1024


class Outbox:
    """One per event loop. All writes to a transport must go through the same one, or come after ``flush``."""

    def __init__(self) -> None:
        self._open = False
        self._held: list[tuple[asyncio.WriteTransport, bytes]] = []
        self._size = 0

    def write(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Send ``data`` now or later in this turn; not at all if ``transport`` is closed before."""
        if not self._open:
            self._open = True
            asyncio.get_running_loop().call_soon(self._end_turn)
            transport.write(data)
            return
        self._held.append((transport, data))
        self._size += len(data)
        if self._size >= MOST_BYTES or len(self._held) >= MOST_WRITES:
            self.flush()

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
        self.flush()
