"""A transport without a socket for protocols that a test calls, and what holds of every header line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


class Wire(asyncio.Transport):
    """A transport that records what is written. ``plain``: not over TLS."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__({} if plain else {"sslcontext": True})
        self.paused = self.closed = False
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.closed = True

    close = abort

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Do nothing: there is no peer."""

    def is_closing(self) -> bool:
        return self.closed

    def set_read_buffer_limits(self, limit: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


def judge_headers(lines: Iterable[tuple[bytes, bytes]]) -> None:
    """Check that no header line contains another one."""
    for name, value in lines:
        assert name and not set(b"\r\n\0: \t").intersection(name), name
        assert not set(b"\r\n\0").intersection(value), (name, value)
