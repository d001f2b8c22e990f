"""A server that answers requests with scripted bytes, whatever they ask for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle


class ScriptedServer:
    """Sends the next of ``replies`` for each request, in turn, and closes the connection.

    With ``drip``, which may be empty, it keeps the connection open until the client closes it, and sends
    those bytes every 10 ms.
    """

    def __init__(self, *replies: bytes, drip: bytes | None = None) -> None:
        #: The heads of all requests, in order.
        self.heads: list[bytes] = []
        #: The connections that are open now.
        self.open = 0
        self.url = ""
        self._replies = cycle(replies)
        self._drip = drip

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection; a client may close it at any moment, even before its request."""
        self.open += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = re.search(rb"content-length: (\d+)", head.lower())
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(next(self._replies))
                while self._drip is not None and not reader.at_eof() and not writer.is_closing():
                    writer.write(self._drip)
                    await asyncio.sleep(0.01)
        finally:
            writer.close()
            self.open -= 1


@asynccontextmanager
async def scripted(*replies: bytes, drip: bytes | None = None) -> AsyncIterator[ScriptedServer]:
    """Run a :class:`ScriptedServer` on a free port."""
    scripted = ScriptedServer(*replies, drip=drip)
    async with await asyncio.start_server(scripted.serve, "127.0.0.1", 0) as server:
        scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield scripted
