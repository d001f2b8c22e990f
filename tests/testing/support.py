"""The sample format with a join reader, a model of its server that merges lines and sends arrays, and breaks.

The laws of joins need the former two; the sample itself has neither. A break changes the class of a format.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.errors import GatewayError, UpstreamIncomplete
from gateway.formats.contract import Ids, Reader, ReplyHead, UpstreamRequest, WorkerView
from gateway.testing.model import ModelExchange
from tests.plugins.echo.gateway_echo import EchoFormat, EchoRequest
from tests.plugins.echo.gateway_echo.reader import EchoReader
from tests.plugins.echo.tests.test_contract import EchoModel, exchanges


class Rewired:
    """A reader that does as ``reader`` does. Subclasses replace a part."""

    def __init__(self, reader: Reader) -> None:
        self.inner = reader
        self.facts = reader.facts
        self.streaming = reader.streaming
        self.identity = reader.identity

    def feed(self, data: bytes) -> bytes:
        return self.inner.feed(data)

    def finish(self) -> bytes:
        return self.inner.finish()

    def fail(self, error: GatewayError) -> bytes:
        return self.inner.fail(error)


class JoiningEcho(EchoFormat):
    """Folds lines into the unary reply."""

    words_of_a_line: int | None = None
    weight = 1

    def joined(self, reply: dict[str, Any]) -> dict[str, Any]:
        return reply

    def join(self, request: EchoRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        reader = self.reader(request, worker, ids, head)
        return JoinReader(self, reader) if isinstance(reader, EchoReader) and reader.streaming else reader


class JoinReader(Rewired):
    """Collects the words of all lines, and adds them to the last line."""

    def __init__(self, format: JoiningEcho, reader: EchoReader) -> None:
        super().__init__(reader)
        self.streaming = False
        self._format = format
        self._lines = b""

    def feed(self, data: bytes) -> bytes:
        self._lines += self.inner.feed(data)
        return b""

    def finish(self) -> bytes:
        self.inner.finish()
        lines = [json.loads(line) for line in self._lines.splitlines()]
        words = [word for line in lines for word in line.get("words", ())[: self._format.words_of_a_line]]
        last = lines[-1] if "problem" in lines[-1] else {**lines[-1], "words": words}
        self.facts.tokens *= self._format.weight
        return json.dumps(self._format.joined(last)).encode()

    def fail(self, error: GatewayError) -> bytes:
        return b""


class JoiningEchoModel(EchoModel):
    """A server that may send an array as base64, and several words in a line to a slow client."""

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        return st.builds(_with_voice, exchanges(), st.none() | st.binary(min_size=12, max_size=40))

    def merges(self, exchange: ModelExchange) -> SearchStrategy[tuple[bytes, ...]]:
        *words, last = exchange.stream
        joints = st.lists(st.booleans(), min_size=len(words), max_size=len(words))
        return joints.map(lambda joined: (*_merged(words, joined), last))


def _with_voice(exchange: ModelExchange, voice: bytes | None) -> ModelExchange:
    if voice is None or exchange.unary_head.status != 200:
        return exchange
    *lines, last = exchange.stream
    array = {"voice": base64.b64encode(voice).decode()}
    last = json.dumps({**json.loads(last), **array}).encode() + b"\n"
    unary = json.dumps({**json.loads(exchange.unary), **array}).encode()
    return replace(exchange, stream=(*lines, last), unary=unary)


def _merged(lines: list[bytes], joined: list[bool]) -> list[bytes]:
    groups: list[list[str]] = []
    for item, to_last in zip(lines, joined, strict=True):
        if not groups or not to_last:
            groups.append([])
        groups[-1] += json.loads(item)["words"]
    return [json.dumps({"words": words}).encode() + b"\n" for words in groups]


# -- breaks

Break = Callable[[Any], None]


def chokes(format: Any) -> None:
    """Raises what no format may raise for a body that is no JSON or has no text."""
    parse = format.parse
    format.parse = lambda self, body, headers: (json.loads(body)["text"], parse(self, body, headers))[1]


def keeps_the_clients_tag(format: Any) -> None:
    """Two exchanges may then have the same id at the server."""
    upstream = format.upstream
    format.upstream = lambda self, request, worker, ids: upstream(
        self, request, worker, Ids(ids.public, ids.public)
    )


def shows_the_private_tag(format: Any) -> None:
    """The client gets the private id."""
    reader = format.reader
    format.reader = lambda self, request, worker, ids, head: reader(
        self, request, worker, Ids(ids.dispatch, ids.dispatch), head
    )


def respells(format: Any) -> None:
    """Encodes the body again."""
    upstream = format.upstream

    def respelled(self: Any, request: Any, worker: Any, ids: Ids) -> UpstreamRequest:
        sent = upstream(self, request, worker, ids)
        body = json.dumps(json.loads(sent.body), indent=1).encode()
        return UpstreamRequest(sent.method, sent.target, sent.headers, body)

    format.upstream = respelled


class Holds(Rewired):
    """Buffers lines until the end."""

    held = b""

    def feed(self, data: bytes) -> bytes:
        self.held += self.inner.feed(data)
        return b""

    def finish(self) -> bytes:
        return self.held + self.inner.finish()


class TakesReadsForLines(Rewired):
    """Drops the incomplete line at the end of a read."""

    def feed(self, data: bytes) -> bytes:
        return self.inner.feed(data[: data.rfind(b"\n") + 1])


class AcceptsAnyEnd(Rewired):
    """Accepts a truncated stream."""

    def finish(self) -> bytes:
        try:
            return self.inner.finish()
        except UpstreamIncomplete:
            return b""


def reads_with(kind: type[Rewired]) -> Break:
    def break_it(format: Any) -> None:
        reader = format.reader
        format.reader = lambda self, *arguments: kind(reader(self, *arguments))

    return break_it


def joins_backwards(format: Any) -> None:
    format.joined = lambda self, reply: {**reply, "words": reply.get("words", [])[::-1]}


def cuts_arrays(format: Any) -> None:
    format.joined = lambda self, reply: {**reply, "voice": reply["voice"][4:]} if "voice" in reply else reply


def joins_a_word_a_line(format: Any) -> None:
    format.words_of_a_line = 1


def counts_twice(format: Any) -> None:
    format.weight = 2
