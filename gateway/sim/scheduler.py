"""The engine core that both dialects share: what waits, what runs, and how fast.

Owns: admission, order, pace, pausing and stopping of sequences. Must never enter: a dialect, HTTP, JSON.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Protocol, TypeVar
from zlib import crc32

from gateway.sim.config import SimConfig
from gateway.sim.pacer import Pacer, Timer
from gateway.sim.prefix_cache import PrefixCache
from gateway.sim.script import Timing
from gateway.sim.tokens import Chooser, pack, word

Key = TypeVar("Key")

#: A unary request without delays makes so many tokens before others get a turn.
_BURST = 256


class Pause(StrEnum):
    """What a paused engine does with requests."""

    HOLD = "hold"  # everything waits where it is
    REJECT = "reject"  # the dialect refuses new ones; what runs goes on


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended: ``stop`` (with what matched), ``length`` or ``abort``. ``status`` is an HTTP-like
    code when the engine itself refused it; ``queued`` when it never ran."""

    kind: str
    matched: int | str | None = None
    message: str = ""
    status: int | None = None
    queued: bool = False


@dataclass(slots=True)
class Sampling:
    """How one sequence is generated. ``limit`` is the most tokens it may have, ``draw`` 0 for greedy."""

    limit: int
    minimum: int = 0
    stop_ids: frozenset[int] = frozenset()
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    stop_regex: tuple[re.Pattern[str], ...] = ()
    draw: int = 0
    allowed: list[int] | None = None
    bias: dict[int, float] | None = None


class Listener(Protocol):
    """Who is told of a sequence's life."""

    #: False: only the end matters, so progress need not be told.
    streams: bool

    def ready(self) -> bool:
        """False: the next token must wait for the reader."""
        ...

    def progress(self, sequence: Sequence) -> None: ...

    def finished(self, sequence: Sequence) -> None: ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt and its one output. ``states`` belong to the output ids, for their log probabilities."""

    id: str
    prompt: list[int]
    packed: bytes
    sampling: Sampling
    timing: Timing
    listener: Listener
    index: int = 0
    priority: int = 0
    #: Sequences of different namespaces (salt, adapter) share no cached prefix.
    namespace: str = ""
    #: At most so many tokens may come from the cache.
    cache_limit: int | None = None
    output: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    text: str = ""
    cached: int = 0
    retractions: int = 0
    versions: list[tuple[str, int]] = field(default_factory=list)
    finish: Finish | None = None
    created: float = 0.0
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    chooser: Chooser | None = None
    timer: Timer | None = None
    parked: bool = False
    prefilled: bool = False

    def spans(self) -> list[tuple[str, int, int]]:
        """Which weight version made which output tokens: version, start, end (not included)."""
        made = len(self.output)
        starts = [start for _, start in self.versions[1:]] + [made]
        spans = [(version, start, end) for (version, start), end in zip(self.versions, starts, strict=True)]
        return [span for span in spans if span[1] < span[2]] or spans[-1:]


class Scheduler:
    """Runs sequences. Everything is synchronous; delays come from the pacer."""

    def __init__(self, config: SimConfig, page: int, *, larger_first: bool) -> None:
        self.config = config
        self.pacer = Pacer()
        self.cache = PrefixCache(config.page_size or page, config.cache_tokens)
        self.running: set[Sequence] = set()
        self.version = "default"
        self.paused: Pause | None = None
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.uncached_tokens = 0
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0}
        self.on_change: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(config.seed)
        self._order = count()
        self._sign = -1 if larger_first else 1
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._parked: set[Sequence] = set()
        self._ids: dict[str, int] = {}
        self._lengths: dict[int, int] = {}

    @property
    def waiting(self) -> list[Sequence]:
        """In no particular order."""
        return [sequence for _, _, sequence in self._waiting]

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def used_tokens(self) -> int:
        """Tokens of prompts and outputs that run now."""
        return sum(len(sequence.prompt) + len(sequence.output) for sequence in self.running)

    def in_flight(self, id: str) -> bool:
        """Does a sequence with this id wait or run?"""
        return id in self._ids

    def has_longer_id(self, id: str) -> bool:
        """Is any id in flight longer than this one? Cheap, and mostly no: then none can begin with it."""
        return any(length > len(id) for length in self._lengths)

    @property
    def full(self) -> bool:
        """A request that comes now would have to wait."""
        limit = self.config.max_running
        return self.paused is Pause.HOLD or (limit is not None and len(self.running) >= limit)

    def draw(self, seed: int | None, sample: int, greedy: bool) -> int:
        """What makes one sample differ from the others of its prompt; 0 for greedy."""
        if greedy:
            return 0
        if seed is None:
            seed = self._random.getrandbits(62) if self.config.random_sampling else self.config.seed
        return 1 + crc32(b"%d %d" % (seed, sample))

    def submit(self, sequence: Sequence) -> None:
        """Start ``sequence``, now or when there is room."""
        sequence.created = self._loop.time()
        length = len(sequence.id)
        self._ids[sequence.id] = self._ids.get(sequence.id, 0) + 1
        self._lengths[length] = self._lengths.get(length, 0) + 1
        if self.full or self._waiting:
            rank = self._sign * sequence.priority if self.config.priority_scheduling else 0
            heapq.heappush(self._waiting, (rank, next(self._order), sequence))
        else:
            self._start(sequence)
        self.on_change()

    def refuse(self, sequence: Sequence, finish: Finish) -> None:
        """End ``sequence`` before it was ever submitted."""
        sequence.created = sequence.ended = self._loop.time()
        sequence.versions.append((self.version, 0))
        sequence.finish = finish
        self.finished[finish.kind] += 1
        sequence.listener.finished(sequence)

    def abort(self, matches: Callable[[Sequence], bool]) -> list[Sequence]:
        """End all that match, with what they have so far."""
        hit = [sequence for sequence in (*self.running, *self.waiting) if matches(sequence)]
        for sequence in hit:
            if sequence.finish is None:
                queued = sequence not in self.running
                message = "Abort in waiting queue" if queued else "Aborted"
                self._end(sequence, Finish("abort", message=message, queued=queued))
        return hit

    def drop(self, sequence: Sequence) -> None:
        """Stop ``sequence`` and tell nobody: there is nobody left to tell."""
        if sequence.finish is None and self.in_flight(sequence.id):
            self._remove(sequence, Finish("abort", message="Aborted"))

    def wake(self, sequence: Sequence) -> None:
        """The reader of a parked sequence takes more."""
        if sequence.parked:
            sequence.parked = False
            sequence.timer = self.pacer.after(0, lambda: self._step(sequence))

    def pause(self, how: Pause, *, retract: bool = False) -> None:
        """Until ``resume``. ``retract``: what runs goes back to the queue."""
        self.paused = how
        if retract:
            for sequence in list(self.running):
                self._retract(sequence)

    def resume(self) -> None:
        self.paused = None
        parked, self._parked = self._parked, set()
        for sequence in parked:
            if sequence.finish is None:
                sequence.timer = self.pacer.after(0, lambda sequence=sequence: self._step(sequence))
        self._fill()

    def set_version(self, version: str) -> None:
        """Tokens made from now on come from these weights."""
        self.version = version
        for sequence in self.running:
            if sequence.versions[-1][0] != version:
                sequence.versions.append((version, len(sequence.output)))

    def prefill_time(self, sequence: Sequence) -> float:
        """Seconds until the first token of a sequence that starts now."""
        timing = sequence.timing
        uncached = len(sequence.prompt) - sequence.cached
        return self._jittered(timing.prefill_base + timing.prefill_per_token * uncached, timing)

    def stop(self) -> None:
        self.pacer.stop()
        self.running.clear()
        self._waiting.clear()
        self._ids.clear()
        self._lengths.clear()

    def _start(self, sequence: Sequence) -> None:
        self.running.add(sequence)
        sequence.started = self._loop.time()
        if not sequence.versions or sequence.versions[-1][0] != self.version:
            sequence.versions.append((self.version, len(sequence.output)))
        if not sequence.prefilled:
            self._look_up(sequence)
        delay = self.prefill_time(sequence)
        if delay <= 0 and not sequence.listener.streams:
            self._step(sequence)
        else:
            sequence.timer = self.pacer.after(delay, lambda: self._step(sequence))

    def _look_up(self, sequence: Sequence) -> None:
        known = self._known_as(sequence)
        offset = (len(known) - len(sequence.packed)) // 8
        found = max(0, self.cache.match(known) - offset) if self.cache.capacity else 0
        sequence.cached = found if sequence.cache_limit is None else min(found, sequence.cache_limit)
        self.uncached_tokens += len(sequence.prompt) - sequence.cached
        self.prompt_tokens += len(sequence.prompt)

    def _known_as(self, sequence: Sequence) -> bytes:
        """The prompt under its cache namespace, which is one page in front of it."""
        if not sequence.namespace:
            return sequence.packed
        return pack([-1 - crc32(sequence.namespace.encode())] * self.cache.page) + sequence.packed

    def _step(self, sequence: Sequence) -> None:
        sequence.timer = None
        if self.paused is Pause.HOLD:
            self._parked.add(sequence)
            return
        listener = sequence.listener
        if not listener.ready():
            sequence.parked = True
            return
        if not sequence.prefilled:
            self._prefill(sequence)
        delay = self._delay(sequence)
        burst = 1 if listener.streams or delay > 0 else _BURST
        while burst and sequence.finish is None:
            self._token(sequence)
            burst -= 1
        if sequence.finish is not None:
            self._end(sequence, sequence.finish)
            return
        if listener.streams:
            listener.progress(sequence)
        sequence.timer = self.pacer.after(delay, lambda: self._step(sequence))

    def _prefill(self, sequence: Sequence) -> None:
        sequence.prefilled = True
        sequence.first = self._loop.time()
        self.cache.insert(self._known_as(sequence))
        config, sampling = self.config, sequence.sampling
        sequence.chooser = Chooser(
            sequence.packed,
            vocab_size=config.vocab_size,
            eos=config.eos_token_id,
            eos_rate=config.eos_rate if sequence.timing.tokens is None else 0.0,
            draw=sampling.draw,
        )
        sequence.chooser.restrict(sampling.allowed, sampling.bias)
        if sampling.limit <= 0:
            sequence.finish = Finish("length")

    def _token(self, sequence: Sequence) -> None:
        sampling, output, chooser = sequence.sampling, sequence.output, sequence.chooser
        assert chooser is not None
        may_end = len(output) >= sampling.minimum
        ends = sampling.eos | sampling.stop_ids if not may_end else frozenset()
        token, state = chooser.next(may_end=may_end and bool(sampling.eos), never=ends)
        output.append(token)
        sequence.states.append(state)
        self.generated_tokens += 1
        if may_end and (token in sampling.eos or token in sampling.stop_ids):
            sequence.finish = Finish("stop", matched=token)
        elif (sampling.stop or sampling.stop_regex) and (matched := self._stop_text(sequence, token)):
            sequence.finish = Finish("stop", matched=matched)
        elif len(output) >= sampling.limit:
            sequence.finish = Finish("length")

    def _stop_text(self, sequence: Sequence, token: int) -> str | None:
        before = len(sequence.text)
        sequence.text += word(token)
        for text in sequence.sampling.stop:
            if text in sequence.text[max(0, before - len(text)) :]:
                return text
        for pattern in sequence.sampling.stop_regex:
            if pattern.search(sequence.text):
                return pattern.pattern
        return None

    def _delay(self, sequence: Sequence) -> float:
        delay = sequence.timing.token_delay
        if self.config.running_delay:
            delay += self.config.running_delay * (len(self.running) - 1)
        return self._jittered(delay, sequence.timing)

    def _jittered(self, delay: float, timing: Timing) -> float:
        if not delay or not timing.jitter:
            return delay
        return delay * (1 + timing.jitter * (2 * self._random.random() - 1))

    def _end(self, sequence: Sequence, finish: Finish) -> None:
        self._remove(sequence, finish)
        sequence.listener.finished(sequence)

    def _remove(self, sequence: Sequence, finish: Finish) -> None:
        sequence.finish = finish
        sequence.ended = self._loop.time()
        if sequence.timer is not None:
            sequence.timer.cancel()
        self._parked.discard(sequence)
        self.finished[finish.kind] += 1
        self._forget(sequence.id)
        if sequence in self.running:
            self.running.remove(sequence)
            if sequence.output and self.cache.capacity:
                self.cache.insert(self._known_as(sequence) + pack(sequence.output))
            self._fill()
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            heapq.heapify(self._waiting)
        self.on_change()

    def _forget(self, id: str) -> None:
        _decrement(self._ids, id)
        _decrement(self._lengths, len(id))

    def _retract(self, sequence: Sequence) -> None:
        if sequence.timer is not None:
            sequence.timer.cancel()
        self.running.discard(sequence)
        self._parked.discard(sequence)
        sequence.retractions += 1
        heapq.heappush(self._waiting, (0, next(self._order), sequence))

    def _fill(self) -> None:
        while self._waiting and not self.full:
            _, _, sequence = heapq.heappop(self._waiting)
            self._start(sequence)


def _decrement(counts: dict[Key, int], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
