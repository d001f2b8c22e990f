"""The supervisor's end of the channel to one process.

Owns: a socket that is read and written without waiting, and what is not sent yet. Must never enter: what
frames mean.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

from gateway.prefork.frames import Frame, Frames

_PIECE = 1 << 18
#: Bytes that may wait for a process that does not read, before nothing more is sent to it.
MOST_UNSENT = 8 << 20


class Link:
    """``selector`` watches ``channel`` under ``data`` until it ends."""

    def __init__(self, channel: socket.socket, selector: selectors.BaseSelector, data: object) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._selector = selector
        self._data = data
        self._frames = Frames()
        self._unsent = bytearray()
        self._ended = False
        self._events = 0
        self._watch()

    def send(self, frame: Frame) -> bool:
        """Put ``frame`` on its way; False when the process has too much before it to read."""
        if len(self._unsent) > MOST_UNSENT:
            return False
        self._unsent += frame.encode()
        self.flush()
        return True

    def flush(self) -> None:
        """Write what can be written now."""
        try:
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # it is gone; its end will be noticed
        self._watch()

    def receive(self) -> Iterator[Frame]:
        """What it has said by now."""
        while not self._ended:
            try:
                data = self._channel.recv(_PIECE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._ended = not data
            yield from self._frames.feed(data)
        self._watch()

    def close(self) -> None:
        """Release the socket; of a process that was forked, its copy only."""
        self._channel.close()

    def leave(self) -> None:
        """The process is gone: stop watching, then close."""
        self._ended = True
        self._watch()
        self.close()

    def _watch(self) -> None:
        """Be called for what can happen now: a channel that ended would be ready to be read for ever."""
        reads = 0 if self._ended else selectors.EVENT_READ
        events = reads | (selectors.EVENT_WRITE if self._unsent and not self._ended else 0)
        if events == self._events:
            return
        if not events:
            self._selector.unregister(self._channel)
        elif self._events:
            self._selector.modify(self._channel, events, self._data)
        else:
            self._selector.register(self._channel, events, self._data)
        self._events = events
