"""The model of an engine: which exchanges it may have with a client.

Owns: the records and the protocols that the author of a format fills in. Must never enter: a law, a dialect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending, Headers, ReplyHead, WorkerView
from gateway.formats.worker_contract import WorkerInfo


@dataclass(frozen=True)
class ModelExchange:
    """One generated exchange, as a stream and as a unary reply.

    ``body`` and ``headers`` are the request for a stream. ``stream`` holds the engine's events in order, each
    complete, with the terminal one; ``unary`` is the reply to the same request without a stream. Ids in the
    request are drawn from ``private_ids`` and occur in the replies only where the engine puts them.

    ``tokens`` counts the generated tokens of all samples. ``finish_reasons`` has one entry per sample, in the
    order in which they end. ``prompt_tokens`` is None if the replies do not contain it. ``volatile`` names
    the keys, at any depth, whose values may differ between the two replies, such as timings.
    """

    body: bytes
    headers: Headers
    stream_head: ReplyHead
    stream: tuple[bytes, ...]
    unary_head: ReplyHead
    unary: bytes
    tokens: int
    prompt_tokens: int | None
    finish_reasons: tuple[str, ...]
    ending: Ending
    volatile: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ModelWorker:
    """A worker as a format sees it (gateway.formats.contract.WorkerView)."""

    info: WorkerInfo
    prefix: bytes = b""
    authorization: bytes | None = None


class EngineModel(Protocol):
    """A small model of the engine behind a format."""

    @property
    def format(self) -> AnyFormat: ...

    @property
    def worker(self) -> WorkerView:
        """Return the worker as the gateway knows it after its probes; ``info`` is set and usable."""
        ...

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        """Return a strategy for exchanges of every kind, with few tokens and few samples."""
        ...


@runtime_checkable
class JoiningModel(EngineModel, Protocol):
    """The model of a format that can fold streams (gateway.formats.optional.JoinsStreams)."""

    def merges(self, exchange: ModelExchange) -> SearchStrategy[tuple[bytes, ...]]:
        """Return the streams of ``exchange`` in which the engine has merged events for a slow client.

        For an engine that never merges, ``st.just(exchange.stream)``.
        """
        ...


def private_ids() -> SearchStrategy[str]:
    """Return a strategy for ids as the gateway makes them: 32 hexadecimal digits, unlike any other text."""
    return st.integers(0, 2**128 - 1).map("{:032x}".format)
