"""One prompt and its output: which token comes next and when the sequence ends; and an index of sequences by
id.

Owns: tokens, stop conditions, weight spans. Must never enter: time, queues, a dialect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.sim.config import SimConfig
from gateway.sim.pacer import Timer
from gateway.sim.script import Timing
from gateway.sim.tokens import Chooser, word

_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Finish:
    """The reason why a sequence ended: ``stop`` (with what matched), ``length`` or ``abort``.

    ``status`` is an HTTP-like code where the engine itself refused or failed it; ``queued`` is true if it
    ended before it ran.
    """

    kind: str
    matched: int | str | None = None
    message: str = ""
    status: int | None = None
    queued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling parameters of a sequence.

    ``limit`` and ``minimum`` count tokens. ``draw`` is 0 for greedy sampling, else a number by which this
    sample differs from the others of its prompt. A strong ``bias`` leaves only that id.
    """

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
    """The receiver of a sequence's progress."""

    @property
    def streams(self) -> bool:
        """False if only the end matters, so that ``progress`` need not be called."""
        ...

    def ready(self) -> bool:
        """Return False if the next token must wait for the reader."""
        ...

    def progress(self, sequence: Sequence) -> None: ...

    def finished(self, sequence: Sequence) -> None: ...


class CacheUse(NamedTuple):
    """What of the prefix cache a sequence may use.

    Sequences of different ``namespace`` (salt, adapter) share no cached prefix, and at most ``limit`` tokens
    come from the cache.
    """

    namespace: str = ""
    limit: int | None = None


@dataclass(slots=True)
class Times:
    """When a sequence was created, started, had its first token and ended, in seconds of the loop's clock."""

    created: float = 0.0
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One prompt and its output, as the scheduler runs it.

    ``packed`` is the prompt as tokens.pack returns it. ``index`` is its place in the request. ``states``
    belong to the output ids, for their log probabilities. ``versions`` are weight versions with the first
    token each generated.
    """

    id: str
    prompt: list[int]
    packed: bytes
    sampling: Sampling
    timing: Timing
    listener: Listener
    index: int = 0
    priority: int = 0
    cache: CacheUse = CacheUse()

    output: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    text: str = ""
    cached: int = 0
    retractions: int = 0
    versions: list[tuple[str, int]] = field(default_factory=list)
    finish: Finish | None = None
    chooser: Chooser | None = None

    times: Times = field(default_factory=Times)
    timer: Timer | None = None
    parked: bool = False

    def prefill(self, config: SimConfig) -> None:
        """Read the prompt. This finishes a sequence that may have no tokens."""
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
        """Generate the next token, which may be the last. ``prefill`` must have been called."""
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
        """Note that tokens from now on are generated by the weights ``version``."""
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, len(self.output)))

    def spans(self) -> list[dict[str, str | int]]:
        """Return which weights generated which output tokens; ``end`` is exclusive."""
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
    """Sequences by id. Several may have the same id.

    Most ids have the same length, so that none is the prefix of another; this is known without checking
    each.
    """

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
        """Remove ``sequence``. Does nothing if it is not there, because ``clear`` was called before."""
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
        """Return the sequences with exactly this id."""
        return list(self._sequences.get(id, ()))

    def with_prefix(self, prefix: str) -> list[str]:
        """Return the ids that begin with ``prefix``."""
        if any(length > len(prefix) for length in self._lengths):
            return [id for id in self._sequences if id.startswith(prefix)]
        return [prefix] if prefix in self else []
