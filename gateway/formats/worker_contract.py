"""How a format recognises its workers: three members, and the records of probes.

Owns: the protocol ``WorkerContract``, probe requests and answers, what a probe finds. Must never enter: a
dialect, I/O, a clock, when a worker is probed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request of a probe. ``target`` is an absolute path; the worker's URL prefix is put in front of it."""

    method: str
    target: str
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """The answer to a ProbeRequest: HTTP status and complete body."""

    status: int
    body: bytes


class Capacity(NamedTuple):
    """How much a worker can take, as far as its engine reports it.

    Its KV cache in blocks, the tokens of one block, the most requests that it runs at once, and the most
    prompt tokens in one batch.
    """

    kv_blocks: int | None = None
    kv_block_size: int | None = None
    max_requests: int | None = None
    max_batch_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The result of the probes of one format for one worker.

    ``capability`` is the format's own if the worker can serve it. ``usable`` is False, with a ``reason`` for
    the operator, if the worker speaks the dialect but cannot serve (disabled, still starting, wrong key).
    ``context_length`` is in tokens. ``stream_mode`` is the dialect's term for how the worker streams.
    ``adapters`` are those of the ``models`` that are adapters of another of them. ``paused`` is True if the
    engine reports that it runs no requests until it is resumed, where its health answer does not show that;
    ``reports_pauses`` if it would, so that it has to be asked at each interval.
    ``cards`` are the entries of the engine's own list of models, by name; no two are alike, as engines date
    them, so that they are not compared.
    ``vocab_size`` is the number of tokens of its model, if it reports that, and ``model_path`` the folder or
    the name from which the engine loaded the model.
    ``launch`` is a text that no other launch of an engine reports; None if there is nothing like it.
    """

    engine: str
    capability: str
    usable: bool
    reason: str = ""
    version: str | None = None
    models: tuple[str, ...] = ()
    context_length: int | None = None
    stream_mode: str | None = None
    weight_version: str | None = None
    adapters: tuple[str, ...] = ()
    paused: bool = False
    reports_pauses: bool = False
    cards: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    launch: str | None = None
    capacity: Capacity = Capacity()
    vocab_size: int | None = None
    model_path: str | None = None


class WorkerContract(Protocol):
    """Worker identification of one engine dialect."""

    #: Requests that show whether a URL speaks the dialect. They are sent to servers of any kind, repeatedly,
    #: so they must be cheap and harmless everywhere.
    probes: Sequence[ProbeRequest]
    #: The cheapest request that shows whether a known worker takes requests now.
    health: ProbeRequest

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        """Read the answers to ``probes``, by target; an answer may be missing. None: another dialect."""
        ...
