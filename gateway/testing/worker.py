"""A scripted worker on a real socket.

Owns: one HTTP/1.1 request per connection, answers to probes, scripted replies. Must never enter: a dialect
(the bytes come from a model), a check of what arrives.
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
    """What happens after the last piece of an answer."""

    COMPLETE = auto()
    CUT = auto()  # the connection is closed before the reply is complete
    SILENCE = auto()  # nothing is sent until the peer disconnects


@dataclass(frozen=True)
class Answer:
    """A reply in ``pieces``, each written once the one before it was sent."""

    head: ReplyHead
    pieces: tuple[bytes, ...]
    end: End = End.COMPLETE


@dataclass(frozen=True)
class ReceivedRequest:
    """A request of the gateway; ``disconnected`` is set when the peer closes the connection in a silence."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)


#: An answer, or a function that makes one for the request.
Script = Answer | Callable[[ReceivedRequest], Answer]


class ScriptedWorker:
    """A worker whose replies a test decides.

    ``calls`` are the requests for ``target``; each takes the next of ``answers``, and silence if there is
    none. Probes are answered from ``probes`` and not recorded. All other requests are recorded in ``others``
    and answered with an empty JSON object. ``prefix`` is the path of the worker's URL, b"" or one like
    WorkerView.prefix.
    """

    def __init__(self, target: bytes, probes: Mapping[ProbeRequest, ProbeReply], prefix: bytes = b"") -> None:
        self.url = ""
        self.answers: deque[Script] = deque()
        self.calls: list[ReceivedRequest] = []
        self.others: list[ReceivedRequest] = []
        self._target = target
        self._prefix = prefix
        self._probes = {
            (probe.method.encode(), prefix + probe.target.encode(), probe.body or b""): reply
            for probe, reply in probes.items()
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedWorker]:
        """Serve on a free loopback port."""
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
                call.disconnected.set()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a peer may disconnect at any time
        finally:
            writer.close()

    def _answer(self, call: ReceivedRequest) -> Answer:
        probe = self._probes.get((call.method, call.target, call.body))
        if probe is not None:
            return Answer(ReplyHead(probe.status, ()), (probe.body,))
        if call.target == self._target:
            self.calls.append(call)
            script = self.answers.popleft() if self.answers else Answer(ReplyHead(200, ()), (), End.SILENCE)
            return script if isinstance(script, Answer) else script(call)
        self.others.append(call)
        return Answer(ReplyHead(200, [(b"content-type", b"application/json")]), (b"{}",))


async def _read(reader: asyncio.StreamReader) -> ReceivedRequest:
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    headers = [(name.lower(), value.strip()) for name, _, value in pairs]
    length = int(dict(headers).get(b"content-length", b"0"))
    method, target, _ = first.split(b" ")
    return ReceivedRequest(method, target, headers, await reader.readexactly(length))


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    lines = [b"HTTP/1.1 %d Scripted" % answer.head.status, b"connection: close"]
    lines += [b"%b: %b" % line for line in answer.head.headers]
    writer.write(b"\r\n".join((*lines, b"transfer-encoding: chunked", b"", b"")))
    for piece in filter(None, answer.pieces):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    if answer.end is End.COMPLETE:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
