"""The sample format with a join reader, and a model of its server that merges lines and sends arrays.

The laws of joins need both; the sample itself has neither.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.errors import GatewayError
from gateway.formats.contract import Ids, Reader, ReplyHead, WorkerView
from gateway.testing.model import ModelExchange
from tests.plugins.echo.gateway_echo import EchoFormat, EchoRequest
from tests.plugins.echo.gateway_echo.reader import EchoReader
from tests.plugins.echo.tests.test_contract import EchoModel, exchanges


class Rewired:
    """A reader whose parts can be replaced."""

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
    """Folds lines into the unary reply. Subclasses break it in one way each."""

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
    return replace(
        exchange, stream=(*lines, last), unary=json.dumps({**json.loads(exchange.unary), **array}).encode()
    )


def _merged(lines: list[bytes], joined: list[bool]) -> list[bytes]:
    groups: list[list[str]] = []
    for item, to_last in zip(lines, joined, strict=True):
        if not groups or not to_last:
            groups.append([])
        groups[-1] += json.loads(item)["words"]
    return [json.dumps({"words": words}).encode() + b"\n" for words in groups]
