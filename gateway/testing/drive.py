"""One exchange of a format, driven as the gateway drives it but without a socket.

Owns: the order of the calls and the record of their results. Must never enter: a law, a dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ids, Reader, ReplyFacts, ReplyHead
from gateway.formats.optional import JoinsStreams, ReleasesBody
from gateway.proxy.in_flight import InFlight
from gateway.testing.model import EngineModel, ModelExchange


@dataclass(frozen=True)
class Outcome:
    """The result of one reply: the client's bytes, the facts, and the error the reader raised, if any."""

    out: bytes
    failure: type[GatewayError] | None
    facts: ReplyFacts


class ParsedExchange:
    """A model exchange whose request the format has parsed and projected."""

    def __init__(self, model: EngineModel, exchange: ModelExchange) -> None:
        self.model = model
        self.exchange = exchange
        self.request = model.format.parse(exchange.body, exchange.headers)
        self.projection = model.format.project(self.request)

    @cached_property
    def ids(self) -> Ids:
        """Return the ids the gateway would use if no other request were in flight."""
        return claim(self.projection.ids, self.projection.ids_usable)

    @property
    def joins(self) -> bool:
        """True if the format can fold a stream."""
        return isinstance(self.model.format, JoinsStreams)

    @property
    def sent(self) -> Any:
        """Return the request as it is kept after it was sent."""
        format = self.model.format
        return format.without_body(self.request) if isinstance(format, ReleasesBody) else self.request

    def relay(self, pieces: Iterable[bytes], ids: Ids | None = None) -> Outcome:
        """Return the outcome of the stream in ``pieces``, relayed."""
        return self._read("reader", self.exchange.stream_head, pieces, ids)

    def join(self, pieces: Iterable[bytes], ids: Ids | None = None) -> Outcome:
        """Return the outcome of the stream in ``pieces``, folded into one reply."""
        return self._read("join", self.exchange.stream_head, pieces, ids)

    def relay_unary(self, ids: Ids | None = None) -> Outcome:
        """Return the outcome of the unary reply, relayed."""
        return self._read("reader", self.exchange.unary_head, (self.exchange.unary,), ids)

    def _read(self, kind: str, head: ReplyHead, pieces: Iterable[bytes], ids: Ids | None) -> Outcome:
        make = getattr(self.model.format, kind)
        return drive(make(self.sent, self.model.worker, ids or self.ids, head), pieces)


def claim(named: tuple[str, ...], usable: bool) -> Ids:
    """Return the ids as the gateway claims them for its only exchange."""
    in_flight: InFlight[None] = InFlight()
    return in_flight.claim(named, usable)


def drive(reader: Reader, pieces: Iterable[bytes]) -> Outcome:
    """Feed ``pieces`` to ``reader`` and end it.

    Errors that a reader may raise are part of the outcome; any other exception propagates.
    """
    out: list[bytes] = []
    failure: type[GatewayError] | None = None
    try:
        for piece in pieces:
            if piece:
                out.append(reader.feed(piece))
                out.extend(_remaining_steps(reader.facts))
        out.append(reader.finish())
    except (UpstreamIncomplete, UpstreamMalformed) as error:
        failure = type(error)
        out.append(reader.fail(error))
    return Outcome(b"".join(out), failure, reader.facts)


def _remaining_steps(facts: ReplyFacts) -> Iterator[bytes]:
    """Run the steps that ``feed`` has left, and yield their output."""
    while (steps := facts.steps) is not None:
        facts.steps = None
        for part in steps:
            yield part or b""


def document(reply: bytes, volatile: frozenset[str] = frozenset()) -> Any:
    """Return ``reply`` as a value to compare, without ``volatile`` keys; numbers keep their spelling."""
    try:
        return _without(json.loads(reply, parse_float=str, parse_constant=str), volatile)
    except ValueError:
        return reply


def respelled(data: bytes, old: tuple[str, ...], new: tuple[str, ...]) -> bytes:
    """Return ``data`` with each id of ``old`` replaced by the one of ``new``."""
    for one, other in zip(old, new, strict=True):
        data = data.replace(one.encode(), other.encode())
    return data


def strings(value: Any) -> Iterator[str]:
    """Yield every string of a document except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def _without(value: Any, volatile: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, volatile) for key, item in value.items() if key not in volatile}
    return [_without(item, volatile) for item in value] if isinstance(value, list) else value
