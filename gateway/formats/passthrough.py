"""Replies that are no stream: holding them, and passing on what nobody looks into.

Owns: how much of a reply is held before it leaves, and the reader of a reply that is passed on unread: an
error status, an encoding that cannot be looked into. Must never enter: a dialect, events, I/O, third-party
packages.
"""

from __future__ import annotations

from gateway.errors import GatewayError
from gateway.formats.contract import Ending, ReplyFacts
from gateway.formats.paths import PathCutter

#: A reply up to this size, in bytes, is held until it is whole, so that a broken one can still be answered by
#: a status; a longer one is passed on as it comes.
HOLD_LIMIT = 1024 * 1024


class ReplyBuffer:
    """The bytes of a reply, until they are over the limit; ``over`` from then on."""

    __slots__ = ("_first", "_rest", "_size", "over")

    def __init__(self) -> None:
        # Most replies come in one read, which is then not copied.
        self._first = b""
        self._rest: list[bytes] | None = None
        self._size = 0
        self.over = False

    def feed(self, data: bytes) -> bytes:
        """b"" up to the limit; then all that was kept, and from there on what comes in."""
        if self.over:
            return data
        if not self._size:
            self._first = data
        elif self._rest is None:
            self._rest = [data]
        else:
            self._rest.append(data)
        self._size += len(data)
        self.over = self._size > HOLD_LIMIT
        return self.take() if self.over else b""

    def take(self) -> bytes:
        """What is kept, which is kept no longer."""
        kept, rest = self._first, self._rest
        self._first, self._rest = b"", None
        return kept if rest is None else b"".join((kept, *rest))


class PassthroughReader:
    """Passes a reply with ``status`` on unread; unless ``streaming`` it is held first, like any reply.

    ``broken`` is raised at its end, where it cannot be what was asked for. ``cut``: file paths are cut out
    of it.
    """

    __slots__ = ("_broken", "_cutter", "_ending", "_buffer", "facts", "identity", "streaming")

    def __init__(
        self, status: int, *, streaming: bool = False, broken: GatewayError | None = None, cut: bool = False
    ) -> None:
        self.facts = ReplyFacts()
        self.streaming = streaming
        self.identity = not cut
        self._ending = Ending.OPAQUE if status < 400 else Ending.ERROR_STATUS
        self._broken = broken
        self._cutter = PathCutter() if cut else None
        self._buffer = ReplyBuffer()
        self._buffer.over = streaming

    def feed(self, data: bytes) -> bytes:
        # Cut as it comes: all that is held at once would take long.
        return self._buffer.feed(data if self._cutter is None else self._cutter.feed(data))

    def finish(self) -> bytes:
        if self._broken is not None:
            raise self._broken
        self.facts.ending = self._ending
        kept = self._buffer.take()
        return kept if self._cutter is None else kept + self._cutter.flush()

    def fail(self, error: GatewayError) -> bytes:
        return b""
