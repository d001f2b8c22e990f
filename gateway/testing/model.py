"""What the contract suite has to be told of an engine: the exchanges it may have with a client.

Owns: the records and the protocol a format's author fills in. Must never enter: a law, a dialect.
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
    """One generated exchange, and both ways of asking for it.

    ``body`` and ``headers`` are the request for a stream. ``stream`` holds the engine's events as it writes
    them, whole, in order, the closing one included; ``unary`` is its reply to the same request without a
    stream. Ids that the request names are drawn from ``private_ids`` and stand in the replies wherever the
    engine puts them, and nowhere else.

    ``tokens`` are generated tokens over all samples, ``finish_reasons`` one word per sample in the order of
    their ends. ``prompt_tokens`` is None where the replies do not tell. ``volatile`` names the keys, at any
    depth, whose values may differ between the two replies: timings, ids the engine makes up.
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
    """A small model of the engine that a format speaks to."""

    @property
    def format(self) -> AnyFormat: ...

    @property
    def worker(self) -> WorkerView:
        """The engine as the gateway would know it once it is probed; ``info`` is set and usable."""
        ...

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        """Exchanges of every kind the engine has, small ones: a few tokens, a few samples."""
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
    """Ids as the gateway makes them: 32 hexadecimal digits, so long that nothing else spells like one."""
    return st.integers(0, 2**128 - 1).map("{:032x}".format)
