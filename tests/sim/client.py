"""A client on a plain socket, so that tests see a simulated engine's bytes unchanged."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Lines = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Answer:
    """A complete response; ``chunks`` are its HTTP chunks, empty without chunked framing."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[bytes]

    @property
    def content_type(self) -> str:
        return dict((name.lower(), value) for name, value in self.headers).get("content-type", "")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of each event, parsed, without ``[DONE]``."""
        found = [event.removeprefix("data: ") for event in self.body.decode().split("\n\n")]
        return [json.loads(event) for event in found if event not in ("", "[DONE]")]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    def send(
        self, path: str, body: bytes | None = None, *, method: str = "POST", headers: Lines = ()
    ) -> None:
        """Write one complete request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: sim", *(f"{name}: {value}" for name, value in headers)]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        """Status and header lines of the response."""
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = raw.split("\r\n")[:-2]
        pairs = [line.split(": ", 1) for line in lines]
        return int(first.split(" ")[1]), [(name, value) for name, value in pairs]

    async def chunk(self) -> bytes:
        """The next HTTP chunk, b"" for the last."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def answer(self) -> Answer:
        """Read the complete response."""
        status, headers = await self.head()
        lower = {name.lower(): value for name, value in headers}
        chunks: list[bytes] = []
        if "content-length" in lower:
            body = await self.reader.readexactly(int(lower["content-length"]))
        else:
            chunks = await self.answer_rest()
            body = b"".join(chunks)
        return Answer(status, headers, body, chunks)

    async def answer_rest(self) -> list[bytes]:
        """Read the remaining chunks."""
        chunks: list[bytes] = []
        while data := await self.chunk():
            chunks.append(data)
        return chunks

    def leave(self, *, reset: bool = False) -> None:
        """Disconnect by FIN or RST."""
        if reset:
            raw = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()


async def ask(
    port: int, path: str, body: bytes | None = None, *, method: str = "POST", headers: Lines = ()
) -> Answer:
    """Send one request on a connection of its own."""
    async with await Client.connect(port) as client:
        client.send(path, body, method=method, headers=headers)
        return await client.answer()
