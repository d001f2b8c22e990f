"""Writing a long request over TLS without blocking the event loop.

Owns: the slices and when each is written. Must never enter: HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

#: Bytes of a long request that are encrypted at once.
SLICE: Final = 256 * 1024


class SlicedWriter:
    """Writes a long request slice by slice, one in each turn of the event loop.

    asyncio encrypts all bytes of a write at once, which takes 50 ms for 64 MiB.
    """

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._slices: Iterator[memoryview] | None = None
        self._paused = False

    @property
    def pending(self) -> bool:
        """True until the last slice was written."""
        return self._slices is not None

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write ``parts`` one after the other."""
        self._slices = _slices(parts)
        self._write_next()

    def pause(self) -> None:
        """Write no more until ``resume``: the peer does not read."""
        self._paused = True

    def resume(self) -> None:
        """Go on writing."""
        self._paused = False
        self._write_next()

    def _write_next(self) -> None:
        if self._slices is None or self._paused or self._transport.is_closing():
            return
        part = next(self._slices, None)
        if part is None:
            self._slices = None
            return
        self._transport.write(part)
        if not self._paused:
            asyncio.get_running_loop().call_soon(self._write_next)


def _slices(parts: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), SLICE):
            end = start + SLICE
            yield view[start:end]
