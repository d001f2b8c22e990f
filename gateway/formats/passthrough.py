"""Replies that are no stream: buffering them, and relaying those that are not inspected.

Owns: how much of a reply is buffered before it is sent, and the passthrough reader: for an error status or an
encoding that cannot be parsed. Must never enter: a dialect, events, I/O, third-party packages.
"""

from __future__ import annotations

from gateway.errors import GatewayError
from gateway.formats.contract import Ending, ReplyFacts
from gateway.formats.paths import PathCutter

#: Bytes. A reply up to this size is buffered until it is complete, so that a broken one can still be answered
#: with an error status; a longer one is relayed as it comes.
BUFFER_LIMIT = 1024 * 1024


class ReplyBuffer:
    """The bytes of a reply, up to the limit; ``over`` is true from then on."""

    __slots__ = ("_first", "_rest", "_size", "over")

    def __init__(self) -> None:
        # Most replies come in one read, which is then not copied.
        self._first = b""
        self._rest: list[bytes] | None = None
        self._size = 0
        self.over = False

    def feed(self, data: bytes) -> bytes:
        """Return b"" up to the limit, then all that was buffered, and from there on ``data`` itself."""
        if self.over:
            return data
        if not self._size:
            self._first = data
        elif self._rest is None:
            self._rest = [data]
        else:
            self._rest.append(data)
        self._size += len(data)
        self.over = self._size > BUFFER_LIMIT
        return self.take() if self.over else b""

    def take(self) -> bytes:
        """Return the buffered bytes and clear the buffer."""
        kept, rest = self._first, self._rest
        self._first, self._rest = b"", None
        return kept if rest is None else b"".join((kept, *rest))


class PassthroughReader:
    """A reader that relays a reply with ``status`` without inspecting it; unless ``streaming`` it is buffered
    first.

    ``broken`` is raised at its end if the reply cannot be what was requested. ``cut``: file paths are
    removed.
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
        # Rewritten as it comes: rewriting all that is buffered at once would take long.
        return self._buffer.feed(data if self._cutter is None else self._cutter.feed(data))

    def finish(self) -> bytes:
        if self._broken is not None:
            raise self._broken
        self.facts.ending = self._ending
        kept = self._buffer.take()
        return kept if self._cutter is None else kept + self._cutter.flush()

    def fail(self, error: GatewayError) -> bytes:
        return b""
