"""How a format recognises its workers: three members, and the records of probes.

Owns: the protocol ``WorkerContract``, probe requests and answers, what a probe finds. Must never enter: a
dialect, I/O, a clock, when a worker is probed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.cards.values import NOTHING, CardValues


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request of a probe. ``target`` is an absolute path; the worker's URL prefix is put in front of it.

    ``once``: the engine reports each thing to one reader only, so that of several processes of a gateway one
    sends the request.
    """

    method: str
    target: str
    body: bytes | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """The answer to a ProbeRequest: HTTP status and complete body."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The result of the probes of one format for one worker.

    ``capability`` is the format's own if the worker can serve it. ``usable`` is False, with a ``reason`` for
    the operator, if the worker speaks the dialect but cannot serve (disabled, still starting, wrong key).
    ``card`` is what the engine says for the worker's card, ``model_cards`` what it says of one model instead,
    by name. ``stream_mode`` is the dialect's term for how the worker streams. ``adapters`` are those of the
    ``models`` that are adapters of another of them. ``paused`` is True if the engine reports that it runs no
    requests until it is resumed, where its health answer does not show that; ``reports_pauses`` if it would,
    so that it has to be asked at each interval.
    ``model_entries`` are those of the engine's own list of models, by name; no two are alike, as engines date
    them, so that they are not compared.
    ``model_path`` is the folder or the name from which the engine loaded the model.
    ``launch`` is a text that no other launch of an engine reports; None if there is nothing like it.
    """

    engine: str
    capability: str
    usable: bool
    reason: str = ""
    version: str | None = None
    models: tuple[str, ...] = ()
    stream_mode: str | None = None
    adapters: tuple[str, ...] = ()
    paused: bool = False
    reports_pauses: bool = False
    model_entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    launch: str | None = None
    card: CardValues = NOTHING
    model_path: str | None = None
    model_cards: Mapping[str, CardValues] = field(default_factory=dict)


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
