"""The scheduler that both dialects share: which requests wait, which run, and how fast.

Owns: admission, order, pace, pausing and stopping of sequences. Must never enter: a dialect, HTTP, JSON.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from itertools import count
from zlib import crc32

from gateway.sim.config import SimConfig
from gateway.sim.pacer import Pacer
from gateway.sim.prefix_cache import PrefixCache
from gateway.sim.script import Timing
from gateway.sim.sequence import Finish, Sequence, SequenceIndex
from gateway.sim.tokens import WIDTH, pack

#: Tokens that a unary request without delays generates before other requests get their turn.
_BURST = 256
#: The version of the weights an engine starts with.
FIRST_VERSION = "default"
_FAILURE = "The simulated engine was configured to fail this request."


class Pause(StrEnum):
    """The treatment of requests while the engine is paused."""

    HOLD = "hold"  # everything waits where it is
    REJECT = "reject"  # the dialect refuses new ones; what runs goes on


class Scheduler:
    """Runs sequences. All methods are synchronous; delays come from the pacer."""

    def __init__(self, config: SimConfig, page: int, *, larger_first: bool) -> None:
        self.config = config
        self.pacer = Pacer()
        self.cache = PrefixCache(config.page_size or page, config.cache_tokens)
        #: The running sequences in the order in which they started.
        self.running: dict[Sequence, None] = {}
        self.version = FIRST_VERSION
        self.paused: Pause | None = None
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.uncached_tokens = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0}
        #: Called whenever a sequence is submitted, waits for its reader, or ends.
        self.on_change: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(config.seed)
        self._order = count()
        self._sign = -1 if larger_first else 1
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._suspended: dict[Sequence, None] = {}
        self._index = SequenceIndex()

    # State.

    @property
    def waiting(self) -> list[Sequence]:
        """The queue, the next sequence first."""
        return [sequence for _, _, sequence in sorted(self._waiting, key=lambda entry: entry[:2])]

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self.running and not self._waiting

    @property
    def used_tokens(self) -> int:
        """The tokens of all running prompts and outputs."""
        return sum(len(sequence.prompt) + len(sequence.output) for sequence in self.running)

    @property
    def full(self) -> bool:
        """True if a new request would have to wait."""
        limit = self.config.max_running
        return self.paused is Pause.HOLD or (limit is not None and len(self.running) >= limit)

    def in_flight(self, id: str) -> bool:
        """Return True if a sequence with this id waits or runs."""
        return id in self._index

    def draw(self, seed: int | None, sample: int, *, greedy: bool) -> int:
        """Return a number by which one sample differs from the others of its prompt; 0 for greedy
        sampling.
        """
        if greedy:
            return 0
        if seed is None:
            seed = self._random.getrandbits(62) if self.config.random_sampling else self.config.seed
        return 1 + crc32(b"%d %d" % (seed, sample))

    # Requests.

    def submit(self, sequence: Sequence) -> None:
        """Start ``sequence``, now or when there is room."""
        sequence.times.created = self._loop.time()
        self._index.add(sequence)
        if self.full or self._waiting:
            heapq.heappush(self._waiting, (self.rank(sequence), next(self._order), sequence))
        else:
            self._start(sequence)
        self.on_change()

    def rank(self, sequence: Sequence) -> int:
        """Return the place of ``sequence`` in the queue by priority; lower goes first."""
        return self._sign * sequence.priority if self.config.priority_scheduling else 0

    def refuse(self, sequence: Sequence, finish: Finish) -> None:
        """End ``sequence``, which was not submitted."""
        sequence.times.created = sequence.times.ended = self._loop.time()
        sequence.on_version(self.version)
        sequence.finish = finish
        self.finished[finish.kind] += 1
        sequence.listener.finished(sequence)

    def abort(self, ids: Iterable[str]) -> int:
        """End all sequences with exactly one of these ids. Return how many there were."""
        return self._abort([sequence for id in dict.fromkeys(ids) for sequence in self._index.get(id)])

    def abort_prefix(self, prefix: str) -> int:
        """End all sequences whose id begins with ``prefix``. Return how many there were."""
        return self.abort(self._index.with_prefix(prefix))

    def abort_all(self) -> int:
        """End all sequences. Return how many there were."""
        return self._abort([*self.running, *self.waiting])

    def evict(self, sequence: Sequence, finish: Finish) -> None:
        """End a queued sequence."""
        self._end(sequence, finish)

    def drop(self, sequence: Sequence) -> None:
        """Stop ``sequence`` without notifying its listener, because the client has disconnected."""
        if sequence.finish is None:
            self._remove(sequence, Finish("abort", message="Aborted"))

    def wake(self, sequence: Sequence) -> None:
        """Continue ``sequence`` if it waited for its reader."""
        if sequence.parked and sequence.finish is None:
            sequence.parked = False
            self._step_after(0, sequence)

    # The engine.

    def pause(self, how: Pause, *, retract: bool = False) -> None:
        """Pause until ``resume``. ``retract``: running sequences go back to the queue."""
        self.paused = how
        if retract:
            for sequence in list(self.running):
                self._retract(sequence)

    def resume(self) -> None:
        self.paused = None
        suspended, self._suspended = self._suspended, {}
        for sequence in suspended:
            self._step_after(0, sequence)
        self._fill()

    def set_version(self, version: str) -> None:
        """Set the weight version of the tokens generated from now on."""
        self.version = version
        for sequence in self.running:
            sequence.on_version(version)

    def stop(self) -> None:
        """Discard all sequences and timers."""
        self.pacer.stop()
        for state in (self.running, self._waiting, self._suspended, self._index):
            state.clear()

    # A single sequence.

    def _start(self, sequence: Sequence) -> None:
        self.running[sequence] = None
        sequence.times.started = self._loop.time()
        sequence.on_version(self.version)
        if sequence.chooser is None:
            self._look_up(sequence)
        delay = self._prefill_time(sequence)
        if delay <= 0 and not sequence.listener.streams:
            self._step(sequence)
        else:
            self._step_after(delay, sequence)

    def _look_up(self, sequence: Sequence) -> None:
        self.prompt_tokens += len(sequence.prompt)
        if self.cache.capacity:
            known = self._known_as(sequence)
            offset = (len(known) - len(sequence.packed)) // WIDTH
            found = max(0, self.cache.match(known) - offset)
            limit = sequence.cache.limit
            sequence.cached = found if limit is None else min(found, limit)
        self.uncached_tokens += len(sequence.prompt) - sequence.cached

    def _known_as(self, sequence: Sequence) -> bytes:
        """Return the key of the prompt in the cache: the prompt itself, behind one page for its cache
        namespace.
        """
        if not sequence.cache.namespace:
            return sequence.packed
        return pack([crc32(sequence.cache.namespace.encode())] * self.cache.page) + sequence.packed

    def _step_after(self, delay: float, sequence: Sequence) -> None:
        sequence.timer = self.pacer.after(delay, partial(self._step, sequence))

    def _step(self, sequence: Sequence) -> None:
        if self.paused is Pause.HOLD:
            self._suspended[sequence] = None
            return
        listener = sequence.listener
        if not listener.ready():
            sequence.parked = True
            self.on_change()
            return
        if sequence.chooser is None:
            sequence.times.first = self._loop.time()
            sequence.prefill(self.config)
            self.cache.insert(self._known_as(sequence))
        delay = self._token_time(sequence)
        self._advance(sequence, 1 if listener.streams or delay > 0 else _BURST)
        if sequence.finish is not None:
            self._end(sequence, sequence.finish)
            return
        if listener.streams:
            listener.progress(sequence)
        self._step_after(delay, sequence)

    def _advance(self, sequence: Sequence, burst: int) -> None:
        fail_after = sequence.timing.fail_after
        before = len(sequence.output)
        while burst and sequence.finish is None:
            if fail_after is not None and len(sequence.output) >= fail_after:
                sequence.finish = Finish("abort", message=_FAILURE, status=500)
                break
            sequence.advance()
            burst -= 1
        self.generated_tokens += len(sequence.output) - before

    def _prefill_time(self, sequence: Sequence) -> float:
        timing = sequence.timing
        uncached = len(sequence.prompt) - sequence.cached
        return self._jittered(timing.prefill_base + timing.prefill_per_token * uncached, timing)

    def _token_time(self, sequence: Sequence) -> float:
        delay = sequence.timing.token_delay
        if self.config.running_delay:
            delay += self.config.running_delay * (len(self.running) - 1)
        return self._jittered(delay, sequence.timing)

    def _jittered(self, delay: float, timing: Timing) -> float:
        if not delay or not timing.jitter:
            return delay
        return delay * (1 + timing.jitter * (2 * self._random.random() - 1))

    # Ends.

    def _abort(self, sequences: list[Sequence]) -> int:
        for sequence in sequences:
            queued = sequence not in self.running
            message = "Abort in waiting queue" if queued else "Aborted"
            self._end(sequence, Finish("abort", message=message, queued=queued))
        return len(sequences)

    def _end(self, sequence: Sequence, finish: Finish) -> None:
        self._remove(sequence, finish)
        sequence.listener.finished(sequence)

    def _remove(self, sequence: Sequence, finish: Finish) -> None:
        sequence.finish = finish
        sequence.times.ended = self._loop.time()
        if sequence.timer is not None:
            sequence.timer.cancel()
        self._suspended.pop(sequence, None)
        self.finished[finish.kind] += 1
        self._index.discard(sequence)
        if sequence in self.running:
            del self.running[sequence]
            if sequence.output:
                self.cache.insert(self._known_as(sequence) + pack(sequence.output))
            self._fill()
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            heapq.heapify(self._waiting)
            # It ended in the queue, where no version was set.
            sequence.on_version(self.version)
        self.on_change()

    def _retract(self, sequence: Sequence) -> None:
        if sequence.timer is not None:
            sequence.timer.cancel()
        del self.running[sequence]
        self._suspended.pop(sequence, None)
        sequence.parked = False
        sequence.retractions += 1
        heapq.heappush(self._waiting, (self.rank(sequence), next(self._order), sequence))

    def _fill(self) -> None:
        while self._waiting and not self.full:
            _, _, sequence = heapq.heappop(self._waiting)
            self._start(sequence)
