"""The rows of the table: each load, the figure read from it, and its bound.

Owns: the list. Must never enter: how a load is run or a figure taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from benchmarks.dialects import SGLANG, VLLM, Knobs
from benchmarks.generators import Load


class Figure(Enum):
    """The figure that is compared."""

    REQUEST = "us a request"
    EVENT = "us an event"
    ADDED = "ms added, p50"
    THROUGHPUT = "events/s against direct"


@dataclass(frozen=True)
class Row:
    """A load and its figure.

    ``bound`` times the best router is the most that the gateway may have. For THROUGHPUT, where more is
    better, it is the least, as a multiple of the direct figure. ``aim`` is a bound for a later release.
    """

    name: str
    title: str
    load: Load
    figure: Figure
    bound: float
    aim: float | None = None


_UNARY = SGLANG.request(8, 1)
_STREAM = SGLANG.request(8, 1, stream=True)
_PACED = SGLANG.request(8, 64, stream=True, knobs=Knobs(pause_us=10_000))
_BURST = SGLANG.request(8, 256, stream=True)


def _wrk(body: bytes, connections: int, path: str = SGLANG.path) -> Load:
    return Load(path, body, connections, wrk=True)


ROWS = (
    Row("unary", "unary, 1 token, 32 connections", _wrk(_UNARY, 32), Figure.REQUEST, 1.0, 0.85),
    Row(
        "prompt",
        "unary, 4,096 ids, 16 connections",
        _wrk(SGLANG.request(4096, 1), 16),
        Figure.REQUEST,
        0.25,
    ),
    Row("latency", "unary, 1 connection", _wrk(_UNARY, 1), Figure.ADDED, 1.0),
    Row("streams", "streams of one token, 32 connections", _wrk(_STREAM, 32), Figure.REQUEST, 1.0),
    Row(
        "paced",
        "128 streams, an event each 10 ms",
        Load(SGLANG.path, _PACED, 128),
        Figure.EVENT,
        1.0,
        0.85,
    ),
    Row(
        "burst",
        "64 streams of 256 events without a pause",
        Load(SGLANG.path, _BURST, 64),
        Figure.THROUGHPUT,
        1.0,
    ),
    Row(
        "vllm-unary",
        "vLLM unary, 1 token, 32 connections",
        _wrk(VLLM.request(8, 1), 32, VLLM.path),
        Figure.REQUEST,
        1.0,
    ),
)


def shrunk(rows: tuple[Row, ...], connections: int) -> tuple[Row, ...]:
    """Return the same rows with fewer connections, for tests of the harness itself."""
    return tuple(
        replace(row, load=replace(row.load, connections=min(connections, row.load.connections)))
        for row in rows
    )
