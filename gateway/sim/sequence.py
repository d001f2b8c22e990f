"""One prompt and its one output: what is generated next and when it is over.

Owns: tokens, stop conditions, weight spans. Must never enter: time, queues, a dialect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from gateway.sim.config import SimConfig
from gateway.sim.pacer import Timer
from gateway.sim.script import Timing
from gateway.sim.tokens import Chooser, word

_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended: ``stop`` (with what matched), ``length`` or ``abort``.

    ``status`` is an HTTP-like code where the engine itself refused or failed it; ``queued`` is true for one
    that ended before it ran.
    """

    kind: str
    matched: int | str | None = None
    message: str = ""
    status: int | None = None
    queued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a sequence is generated. ``limit`` and ``minimum`` count tokens; ``draw`` is 0 for greedy, else
    what tells this sample from the others of its prompt; a strong ``bias`` leaves only that id."""

    limit: int
    minimum: int = 0
    stop_ids: frozenset[int] = _NOTHING
    eos: frozenset[int] = _NOTHING
    stop: tuple[str, ...] = ()
    stop_regex: tuple[re.Pattern[str], ...] = ()
    draw: int = 0
    allowed: list[int] | None = None
    bias: dict[int, float] | None = None


class Listener(Protocol):
    """Who is told of a sequence's life."""

    @property
    def streams(self) -> bool:
        """False: only the end matters, so progress need not be told."""
        ...

    def ready(self) -> bool:
        """False: the next token must wait for the reader."""
        ...

    def progress(self, sequence: Sequence) -> None: ...

    def finished(self, sequence: Sequence) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """What the scheduler runs. ``packed`` is the prompt as tokens.pack gives it.

    ``index`` is its place in the request. Sequences of different ``namespace`` (salt, adapter) share no
    cached prefix, and at most ``cache_limit`` tokens come from the cache. ``states`` belong to the output
    ids, for their log probabilities. ``versions`` are weight versions with the first token each made. Times
    are of the loop's clock, in seconds.
    """

    id: str
    prompt: list[int]
    packed: bytes
    sampling: Sampling
    timing: Timing
    listener: Listener
    index: int = 0
    priority: int = 0
    namespace: str = ""
    cache_limit: int | None = None

    output: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    text: str = ""
    cached: int = 0
    retractions: int = 0
    versions: list[tuple[str, int]] = field(default_factory=list)
    finish: Finish | None = None
    chooser: Chooser | None = None

    created: float = 0.0
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    timer: Timer | None = None
    parked: bool = False

    def prefill(self, config: SimConfig) -> None:
        """Read the prompt. A sequence that may have no tokens is finished by it."""
        sampling = self.sampling
        forced = self.timing.tokens is not None
        self.chooser = Chooser(
            self.packed,
            vocab_size=config.vocab_size,
            eos=config.eos_token_id,
            eos_rate=0.0 if forced else config.eos_rate,
            draw=sampling.draw,
        )
        if sampling.allowed or sampling.bias:
            self.chooser.restrict(sampling.allowed, sampling.bias)
        if sampling.limit <= 0:
            self.finish = Finish("length")

    def advance(self) -> None:
        """Make the next token, which may be the last. ``prefill`` comes first."""
        sampling, output, chooser = self.sampling, self.output, self.chooser
        assert chooser is not None
        may_end = len(output) >= sampling.minimum
        never = _NOTHING if may_end else sampling.eos | sampling.stop_ids
        token, state = chooser.next(may_end=may_end and bool(sampling.eos), never=never)
        output.append(token)
        self.states.append(state)
        if may_end and (token in sampling.eos or token in sampling.stop_ids):
            self.finish = Finish("stop", matched=token)
        elif (sampling.stop or sampling.stop_regex) and (matched := self._stop_text(token)) is not None:
            self.finish = Finish("stop", matched=matched)
        elif len(output) >= sampling.limit:
            self.finish = Finish("length")

    def on_version(self, version: str) -> None:
        """Tokens made from now on come from the weights ``version``."""
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, len(self.output)))

    def spans(self) -> list[dict[str, str | int]]:
        """Which weights made which output tokens; ``end`` is not included."""
        ends = [start for _, start in self.versions[1:]] + [len(self.output)]
        spans: list[dict[str, str | int]] = [
            {"version": version, "start": start, "end": end}
            for (version, start), end in zip(self.versions, ends, strict=True)
        ]
        return [span for span in spans if span["start"] != span["end"]] or spans[-1:]

    def _stop_text(self, token: int) -> str | None:
        before = len(self.text)
        self.text += word(token)
        for text in self.sampling.stop:
            if text in self.text[max(0, before - len(text)) :]:
                return text
        for pattern in self.sampling.stop_regex:
            if pattern.search(self.text):
                return pattern.pattern
        return None


class SequenceIndex:
    """Several may have one id. Mostly ids are of one length, so that none begins another: that is found out
    without looking at each."""

    def __init__(self) -> None:
        self._sequences: dict[str, list[Sequence]] = {}
        self._lengths: dict[int, int] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._sequences

    def add(self, sequence: Sequence) -> None:
        self._sequences.setdefault(sequence.id, []).append(sequence)
        length = len(sequence.id)
        self._lengths[length] = self._lengths.get(length, 0) + 1

    def discard(self, sequence: Sequence) -> None:
        """Does nothing if it is not there: the whole engine was stopped before."""
        same = self._sequences.get(sequence.id)
        if same is None:
            return
        same.remove(sequence)
        if not same:
            del self._sequences[sequence.id]
        length = len(sequence.id)
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]

    def clear(self) -> None:
        self._sequences.clear()
        self._lengths.clear()

    def get(self, id: str) -> list[Sequence]:
        """Those with exactly this id."""
        return list(self._sequences.get(id, ()))

    def with_prefix(self, prefix: str) -> list[str]:
        """The ids that begin so."""
        if any(length > len(prefix) for length in self._lengths):
            return [id for id in self._sequences if id.startswith(prefix)]
        return [prefix] if prefix in self else []
