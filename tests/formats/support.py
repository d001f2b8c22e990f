"""Heads, a worker and recorded exchanges, for the tests of all formats."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from gateway.errors import GatewayError
from gateway.exchange import ExchangeEvent, ExchangeRecord
from gateway.formats.contract import Ending, Headers, Ids, ReplyFacts
from gateway.formats.worker_contract import WorkerInfo

FIXTURES = Path(__file__).parents[2] / "fixtures"

#: Values that Python's ``json`` reads, and that are no standard JSON or are out of the range of a float.
LOOSE_JSON = (b"NaN", b"-Infinity", b"1e400", rb'"\ud800"', b'"\xed\xa0\x80"')
HEX = "0123456789abcdef0123456789abcdef"
PRIVATE = Ids(("job-1",), (HEX,))
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
HTML = [(b"content-type", b"text/html")]
ZIPPED = [(b"content-encoding", b"gzip")]
DONE = b"data: [DONE]\n\n"


T = TypeVar("T")


@dataclass(frozen=True)
class View:
    """A worker as a format sees it."""

    prefix: bytes = b""
    authorization: bytes | None = None
    info: WorkerInfo | None = None


def lines(headers: Iterable[Iterable[str]]) -> Headers:
    return [(name.encode(), value.encode()) for name, value in headers]


@cache
def records(engine: str, kind: str) -> dict[str, dict[str, Any]]:
    """Return the exchanges of one fixture file of an engine, by name."""
    with (FIXTURES / engine / f"{kind}.jsonl").open(encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    return {record["name"]: record for record in found}


def run_steps(steps: Generator[Any, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def pieces(data: bytes, seed: int | None) -> Iterator[bytes]:
    """``data`` cut at random places, or byte by byte where ``seed`` is None."""
    if seed is None:
        yield from (data[place : place + 1] for place in range(len(data)))
        return
    rng = random.Random(seed)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 40)))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        yield data[start:end]


def recorded_ending(facts: ReplyFacts, failure: GatewayError | type[GatewayError] | None) -> Ending | None:
    """Return the ending of a reply as its exchange records it."""
    exchange = ExchangeRecord("f", "/", 0.0, ())
    exchange.ending = facts.ending
    if failure is not None:
        exchange.end(ExchangeEvent.FAIL, 0.0, failure("x") if isinstance(failure, type) else failure)
    return exchange.ending
