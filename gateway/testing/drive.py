"""Taking one exchange through a format, as the gateway's handler does, without a socket.

Owns: the order of the calls, and what came of them. Must never enter: a law, a dialect.
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
class Told:
    """What a client was told, and what the gateway has learned. ``failure`` is the reader's own, if any."""

    out: bytes
    failure: type[GatewayError] | None
    facts: ReplyFacts


class Asked:
    """A request that a format has taken in."""

    def __init__(self, model: EngineModel, exchange: ModelExchange) -> None:
        self.model = model
        self.exchange = exchange
        self.request = model.format.parse(exchange.body, exchange.headers)
        self.projection = model.format.project(self.request)

    @cached_property
    def ids(self) -> Ids:
        """Those the gateway would take if nothing else ran."""
        return claim(self.projection.ids, self.projection.ids_usable)

    @property
    def joins(self) -> bool:
        """True if the format can fold a stream."""
        return isinstance(self.model.format, JoinsStreams)

    @property
    def sent(self) -> Any:
        """The request as it is kept once a worker has it."""
        format = self.model.format
        return format.without_body(self.request) if isinstance(format, ReleasesBody) else self.request

    def relay(self, pieces: Iterable[bytes], ids: Ids | None = None) -> Told:
        """The stream in ``pieces``, passed on."""
        return self._read("reader", self.exchange.stream_head, pieces, ids)

    def join(self, pieces: Iterable[bytes], ids: Ids | None = None) -> Told:
        """The stream in ``pieces``, folded into one reply."""
        return self._read("join", self.exchange.stream_head, pieces, ids)

    def relay_unary(self, ids: Ids | None = None) -> Told:
        """The engine's reply without a stream, passed on."""
        return self._read("reader", self.exchange.unary_head, (self.exchange.unary,), ids)

    def _read(self, kind: str, head: ReplyHead, pieces: Iterable[bytes], ids: Ids | None) -> Told:
        make = getattr(self.model.format, kind)
        return drive(make(self.sent, self.model.worker, ids or self.ids, head), pieces)


def claim(named: tuple[str, ...], usable: bool) -> Ids:
    """Ids as the gateway takes them for the only exchange it has."""
    in_flight: InFlight[None] = InFlight()
    return in_flight.claim(named, usable)


def drive(reader: Reader, pieces: Iterable[bytes]) -> Told:
    """Feed ``pieces`` to ``reader`` to its end. Raises whatever is no failure of the reply."""
    out: list[bytes] = []
    failure: type[GatewayError] | None = None
    try:
        for piece in pieces:
            if piece:
                out.append(reader.feed(piece))
                out.extend(_left(reader.facts))
        out.append(reader.finish())
    except (UpstreamIncomplete, UpstreamMalformed) as error:
        failure = type(error)
        out.append(reader.fail(error))
    return Told(b"".join(out), failure, reader.facts)


def _left(facts: ReplyFacts) -> Iterator[bytes]:
    """What was left to be done in steps."""
    while (steps := facts.steps) is not None:
        facts.steps = None
        for part in steps:
            yield part or b""


def document(reply: bytes, volatile: frozenset[str] = frozenset()) -> Any:
    """``reply`` in a form that can be compared: without ``volatile`` keys, numbers as they are spelled."""
    try:
        return _without(json.loads(reply, parse_float=str, parse_constant=str), volatile)
    except ValueError:
        return reply


def respelled(data: bytes, old: tuple[str, ...], new: tuple[str, ...]) -> bytes:
    """``data`` with each id of ``old`` replaced by its counterpart, wherever it stands."""
    for one, other in zip(old, new, strict=True):
        data = data.replace(one.encode(), other.encode())
    return data


def strings(value: Any) -> Iterator[str]:
    """Every string of a document, but for keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def _without(value: Any, volatile: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, volatile) for key, item in value.items() if key not in volatile}
    return [_without(item, volatile) for item in value] if isinstance(value, list) else value
