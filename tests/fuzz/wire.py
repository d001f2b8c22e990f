"""A transport that leads nowhere, for protocols that are fed by hand.

Owns: what was written, and whether reading is paused. Must never enter: HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


class Wire(asyncio.Transport):
    """``plain``: not over TLS. No kernel can be asked about either kind."""

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
        return False

    def is_closing(self) -> bool:
        return self.closed

    def set_read_buffer_limits(self, limit: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0
