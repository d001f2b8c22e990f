"""A strict HTTP/1.1 client for one connection to the gateway."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

#: Bytes that a client which does not read keeps in its own buffer.
_ROOM = 1 << 14


class Broken(Exception):
    """The connection ended too early, or the data is not HTTP/1.1."""


@dataclass(frozen=True)
class Head:
    """The status and headers (names in lower case) of a reply."""

    status: int
    headers: Mapping[str, str]


class Connection:
    """A connection to the gateway at ``port``, used for one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect. Raises Broken if the connection is refused."""
        try:
            return cls(*await asyncio.open_connection("127.0.0.1", port, limit=_ROOM))
        except OSError as error:
            raise Broken(f"no connection: {error}") from error

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def head(self) -> Head:
        try:
            text = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise Broken(f"no head of a reply: {error}") from error
        first, *lines = text[:-4].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if version != "HTTP/1.1" or not rest[:3].isdigit():
            raise Broken(f"not a status line: {first!r}")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name.lower() in headers:
                raise Broken(f"a bad header line, or one too many: {line!r}")
            headers[name.lower()] = value.strip()
        return Head(int(rest[:3]), headers)

    async def body(self, head: Head) -> AsyncIterator[bytes]:
        """Yield the body in the pieces that the gateway sent, to its end."""
        try:
            if "content-length" in head.headers:
                if "transfer-encoding" in head.headers:
                    raise Broken("two framings")
                yield await self._reader.readexactly(int(head.headers["content-length"]))
                return
            if head.headers.get("transfer-encoding") != "chunked":
                raise Broken("a reply without an end")
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError) as error:
            raise Broken(f"the body broke off: {type(error).__name__}") from error

    def leave(self, *, reset: bool) -> None:
        if reset and (sock := self._writer.get_extra_info("socket")) is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        else:
            self._writer.close()


def request(
    method: str,
    path: str,
    body: bytes,
    headers: tuple[tuple[str, str], ...] = (),
    *,
    length: int | None = None,
) -> bytes:
    """Return one request as bytes. ``length`` is a false content length."""
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [f"content-length: {len(body) if length is None else length}", "", ""]
    return "\r\n".join(lines).encode() + body
