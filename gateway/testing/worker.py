"""A worker that answers what it is told to: a model's exchanges, on a real socket.

Owns: one HTTP/1.1 request per connection, probes, scripted answers. Must never enter: a dialect (bytes come
from a model), judgement of what arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from gateway.formats.contract import Headers, ReplyHead
from gateway.formats.worker_contract import ProbeReply, ProbeRequest


class End(Enum):
    """What follows the last piece of an answer."""

    WHOLE = auto()
    CUT = auto()  # the connection breaks
    SILENCE = auto()  # nothing, until the peer hangs up


@dataclass(frozen=True)
class Answer:
    """A reply in ``pieces``, each written as soon as the one before it has left."""

    head: ReplyHead
    pieces: tuple[bytes, ...]
    end: End = End.WHOLE


@dataclass(frozen=True)
class Call:
    """A request that arrived; ``left`` is set when its peer hangs up on a silence."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    left: asyncio.Event = field(default_factory=asyncio.Event)


#: An answer, or what makes one for the call it is to.
Script = Answer | Callable[[Call], Answer]


class ScriptedWorker:
    """``calls`` are requests for ``target``, answered by ``answers`` in turn; ``others`` is all else.

    Probes are answered by ``probes`` and never noted. A call beyond the last answer meets silence, any other
    request an empty JSON object. ``prefix`` is the path of its URL, b"" or as WorkerView has it.
    """

    def __init__(self, target: bytes, probes: Mapping[ProbeRequest, ProbeReply], prefix: bytes = b"") -> None:
        self.url = ""
        self.answers: deque[Script] = deque()
        self.calls: list[Call] = []
        self.others: list[Call] = []
        self._target = target
        self._prefix = prefix
        self._probes = {
            (probe.method.encode(), prefix + probe.target.encode(), probe.body or b""): reply
            for probe, reply in probes.items()
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedWorker]:
        """On a free port of the loopback."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}{self._prefix.decode()}"
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            call = await _read(reader)
            answer = self._answer(call)
            await _write(writer, answer)
            if answer.end is End.SILENCE:
                await reader.read()
                call.left.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a peer may leave at any time
        finally:
            writer.close()

    def _answer(self, call: Call) -> Answer:
        probe = self._probes.get((call.method, call.target, call.body))
        if probe is not None:
            return Answer(ReplyHead(probe.status, ()), (probe.body,))
        if call.target == self._target:
            self.calls.append(call)
            script = self.answers.popleft() if self.answers else Answer(ReplyHead(200, ()), (), End.SILENCE)
            return script if isinstance(script, Answer) else script(call)
        self.others.append(call)
        return Answer(ReplyHead(200, [(b"content-type", b"application/json")]), (b"{}",))


async def _read(reader: asyncio.StreamReader) -> Call:
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    headers = [(name.lower(), value.strip()) for name, _, value in pairs]
    length = int(dict(headers).get(b"content-length", b"0"))
    method, target, _ = first.split(b" ")
    return Call(method, target, headers, await reader.readexactly(length))


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    lines = [b"HTTP/1.1 %d Scripted" % answer.head.status, b"connection: close"]
    lines += [b"%b: %b" % line for line in answer.head.headers]
    writer.write(b"\r\n".join((*lines, b"transfer-encoding: chunked", b"", b"")))
    for piece in filter(None, answer.pieces):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    if answer.end is End.WHOLE:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
