"""The supervisor's end of the channel to one process.

Owns: a non-blocking socket, and the bytes that were not sent yet. Must never enter: what frames mean.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

from gateway.prefork.frames import Frame, FrameParser

_READ_SIZE = 1 << 18
#: Unsent bytes above which nothing more is sent to a process that does not read.
MAX_UNSENT = 8 << 20


class ProcessChannel:
    """A channel that ``selector`` watches until it ends; ``data`` is the selector key's data."""

    def __init__(self, channel: socket.socket, selector: selectors.BaseSelector, data: object) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._selector = selector
        self._data = data
        self._parser = FrameParser()
        self._unsent = bytearray()
        self._ended = False
        self._events = 0
        self._register()

    def send(self, frame: Frame) -> bool:
        """Send ``frame``, or queue it; return False if the process has too many bytes to read already."""
        if len(self._unsent) > MAX_UNSENT:
            return False
        self._unsent += frame.encode()
        self.flush()
        return True

    def flush(self) -> None:
        """Write what can be written without waiting."""
        try:
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the process is gone; SIGCHLD reports it
        self._register()

    def receive(self) -> Iterator[Frame]:
        """Yield the frames that have arrived."""
        while not self._ended:
            try:
                data = self._channel.recv(_READ_SIZE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._ended = not data
            yield from self._parser.feed(data)
        self._register()

    def close(self) -> None:
        """Close the socket; in a forked process, its copy only."""
        self._channel.close()

    def end(self) -> None:
        """Stop watching, and close the socket, of a process that is gone."""
        self._ended = True
        self._register()
        self.close()

    def _register(self) -> None:
        """Tell the selector which events to wait for: at end of file a socket stays readable for ever."""
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
