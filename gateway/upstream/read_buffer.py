"""The size of each read from the socket of a worker.

Owns: the buffer sizes. Must never enter: HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: Bytes of the buffer that all connections of an event loop share: each read is parsed before the next one.
READ_SIZE: Final = 128 * 1024
#: Bytes read at once outside of long bodies: to split small events takes several times the size of the read.
USUAL_READ: Final = 32 * 1024
#: Reads of READ_SIZE after which the event loop runs what else is due.
MAX_FULL_READS: Final = 8


class ReadBuffer:
    """The part of the shared buffer that one connection reads into. ``current`` is for the next read."""

    def __init__(self, shared: bytearray) -> None:
        self._large = memoryview(shared)
        self._usual = self._large[:USUAL_READ]
        self.current = self._usual
        self._full_reads = 0

    def adapt(self, nbytes: int, chunks: Sequence[bytes]) -> None:
        """Choose the size of the next read after one of ``nbytes``, at least USUAL_READ, that gave
        ``chunks``."""
        # All of the read was one piece of a body, and of one line in it.
        inside = bool(chunks) and len(chunks[-1]) == nbytes and chunks[-1].find(b"\n") < 0
        self.current = self._large if inside else self._usual

    def full_too_often(self) -> bool:
        """Count a read of READ_SIZE; return True after each MAX_FULL_READS of them.

        Not after each one, because a long body costs less while it is in the caches of the CPU.
        """
        self._full_reads += 1
        if self._full_reads < MAX_FULL_READS:
            return False
        self._full_reads = 0
        return True
