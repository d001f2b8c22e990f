"""A format of somebody else's is installed like any package and serves through the whole gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.registry import load_formats
from tests.support.gateway import rig


class EchoServer:
    """A server of the dialect; ``cut`` makes it hang up before it has said all."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.bodies: list[bytes] = []
        self.cut = False
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EchoServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        if head.startswith("get /about-echo"):
            writer.write(self._reply("text/plain", b"echo"))
        elif head.startswith("post /echo"):
            writer.write(self._answer(json.loads(body), fields["x-tag"], body))
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    def _answer(self, call: dict[str, object], tag: str, body: bytes) -> bytes:
        self.tags.append(tag)
        self.bodies.append(body)
        words = str(call["say"]).split()
        if not call.get("lines"):
            whole = json.dumps({"tag": tag, "said": words, "why": "end"}).encode()
            return self._reply("application/json", whole)
        lines: list[dict[str, object]] = [{"said": [word]} for word in words]
        if not self.cut:
            lines.append({"why": "end", "tag": tag})
        return self._reply(
            "application/x-ndjson", b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        )

    def _reply(self, kind: str, body: bytes) -> bytes:
        lines = ["HTTP/1.1 200 OK", f"content-type: {kind}", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, "connection: close", "", ""]).encode() + body


def test_installed_format_is_found_beside_our_own(installed: Path) -> None:
    """The entry point is all it takes."""
    formats = load_formats()
    assert {"echo", "sglang", "vllm"} <= formats.keys()
    assert type(formats["echo"]).__module__ == "gateway_echo"
    assert str(installed) in str(sys.modules["gateway_echo"].__file__)


def test_format_that_is_not_installed_is_not_found() -> None:
    """Without its metadata the sample is just a folder."""
    assert "echo" not in load_formats()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"say":1}', b'{"say":"a","tag":1}'])
def test_sample_keeps_the_contract_of_parse(body: bytes) -> None:
    """InvalidRequest, and nothing else."""
    with pytest.raises(InvalidRequest):
        load_formats()["echo"].parse(body, ())


@pytest.mark.usefixtures("installed")
async def test_unary_call_goes_through_the_gateway() -> None:
    """`/generate` speaks the dialect that the setting names: body, id and reply are its own."""
    async with EchoServer().running() as server, rig(server.url, generate_format="echo") as gateway:
        body = b'{ "say":"one two",  "tag":"t1", "x":1e-7 }'
        reply = await gateway.client.post("/generate", content=body)
        assert (reply.status_code, server.bodies) == (200, [body])
        assert reply.json() == {"tag": "t1", "said": ["one", "two"], "why": "end"}


@pytest.mark.usefixtures("installed")
async def test_stream_goes_through_the_gateway_under_a_private_id() -> None:
    """A tag that the dialect cannot send is replaced on the way and put back in the reply."""
    async with EchoServer().running() as server, rig(server.url, generate_format="echo") as gateway:
        reply = await gateway.client.post("/generate", json={"say": "a b", "lines": True, "tag": "é!"})
        lines = [json.loads(line) for line in reply.text.splitlines()]
        assert lines == [{"said": ["a"]}, {"said": ["b"]}, {"why": "end", "tag": "é!"}]
        assert len(server.tags[0]) == 32


@pytest.mark.usefixtures("installed")
async def test_failures_are_told_in_the_dialect() -> None:
    """A refusal before, and a failure after commit, are spelled by the format."""
    async with EchoServer().running() as server, rig(server.url, generate_format="echo") as gateway:
        refused = await gateway.client.post("/generate", content=b"{}")
        assert (refused.status_code, refused.json()) == (400, {"problem": "Nothing to say"})
        server.cut = True
        reply = await gateway.client.post("/generate", json={"say": "a", "lines": True})
        first, last = (json.loads(line) for line in reply.text.splitlines())
        assert first == {"said": ["a"]}
        assert last["problem"]
