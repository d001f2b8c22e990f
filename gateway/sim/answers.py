"""How the sequences of one request become one HTTP answer, whole or as events.

Owns: when an event is due, what a slow reader gets, where an answer stalls or breaks. Must never enter: a
dialect (it renders), admission.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.sim.engine import Engine
from gateway.sim.exchange import Exchange, chunk
from gateway.sim.request_log import Milestone
from gateway.sim.script import Timing
from gateway.sim.sequence import Sequence


class Renderer(Protocol):
    """What a dialect writes of one request."""

    def event(self, sequence: Sequence, sent: int, *, first: bool) -> bytes:
        """The event for the output after its first ``sent`` tokens; the last one if it is finished."""
        ...

    def closing(self, sequences: list[Sequence]) -> bytes:
        """The events after the last sequence ended."""
        ...

    def unary(self, sequences: list[Sequence]) -> tuple[int, bytes]:
        """Status and body of the unary answer."""
        ...


class Answer:
    """What unary and streamed answers share."""

    streams = False

    def __init__(self, engine: Engine, exchange: Exchange, timing: Timing, renderer: Renderer) -> None:
        self.exchange = exchange
        self.sequences: list[Sequence] = []
        self._scheduler = engine.scheduler
        self._log = engine.log
        self._timing = timing
        self._renderer = renderer
        self._remaining = 0

    def run(self, sequences: list[Sequence], submit: Callable[[Sequence], None]) -> None:
        """Submit ``sequences``; the answer is whole when all of them ended."""
        self.sequences = sequences
        self._remaining = len(sequences)
        for sequence in sequences:
            if not self.exchange.done:
                submit(sequence)

    def ready(self) -> bool:
        return True

    def progress(self, sequence: Sequence) -> None:
        """Nothing: only the whole counts."""

    def finished(self, sequence: Sequence) -> None:
        if sequence.finish is not None and sequence.finish.kind == "abort":
            self._log.record(self.exchange.arrival, Milestone.ABORTED)
        self._remaining -= 1

    def drop(self) -> None:
        """Stop what still runs; the client gets nothing more."""
        for sequence in self.sequences:
            if sequence.finish is None:
                self._scheduler.drop(sequence)
                self._log.record(self.exchange.arrival, Milestone.ABORTED)


class UnaryAnswer(Answer):
    """One body at the end. A stall means it never comes, a cut that half of it does."""

    def finished(self, sequence: Sequence) -> None:
        super().finished(sequence)
        if self._remaining or self._timing.stall_after is not None or self.exchange.done:
            return
        status, body = self._renderer.unary(self.sequences)
        if self._timing.cut_after is None:
            self.exchange.send(status, body)
            return
        self.exchange.promise(status, len(body), body[: len(body) // 2])
        self.exchange.cut(reset=self._timing.cut == "rst")


class StreamAnswer(Answer):
    """An event for each token, or for each ``interval`` of them after the first."""

    streams = True

    def __init__(
        self, engine: Engine, exchange: Exchange, timing: Timing, renderer: Renderer, interval: int
    ) -> None:
        super().__init__(engine, exchange, timing, renderer)
        self._interval = interval
        self._merge = engine.config.merge_unread
        self._sent: dict[int, int] = {}
        #: Sequences with an event that a slow reader could not be given.
        self._behind: dict[Sequence, None] = {}
        self._interrupted = timing.stall_after is not None or timing.cut_after is not None
        exchange.on_writable = self._catch_up

    def ready(self) -> bool:
        return self._merge or not self.exchange.connection.paused

    def progress(self, sequence: Sequence) -> None:
        sent = self._sent.get(sequence.index, 0)
        if sent and self._interval > 1 and len(sequence.output) - sent < self._interval:
            return
        self._offer(sequence)

    def finished(self, sequence: Sequence) -> None:
        super().finished(sequence)
        self._offer(sequence)
        self._close_if_over()

    def _offer(self, sequence: Sequence) -> None:
        if self.exchange.connection.paused:
            self._behind[sequence] = None
        else:
            self._emit(sequence)

    def _catch_up(self) -> None:
        behind, self._behind = self._behind, {}
        for sequence in behind:
            self._offer(sequence)
        self._close_if_over()
        for sequence in self.sequences:
            self._scheduler.wake(sequence)

    def _emit(self, sequence: Sequence) -> None:
        exchange = self.exchange
        if exchange.done or self._stalled():
            return
        index = sequence.index
        sent = self._sent.get(index)
        event = self._renderer.event(sequence, sent or 0, first=sent is None)
        self._sent[index] = len(sequence.output)
        if self._interrupted and self._cut(event):
            return
        exchange.connection.write(chunk(event))
        arrival = exchange.arrival
        arrival.events += 1
        if arrival.streaming is None:
            self._log.record(arrival, Milestone.STREAMING)

    def _close_if_over(self) -> None:
        if self._remaining or self._behind or self.exchange.done or self._stalled():
            return
        closing = self._renderer.closing(self.sequences)
        if not (self._interrupted and self._cut(closing)):
            self.exchange.end(closing)

    def _stalled(self) -> bool:
        stall = self._timing.stall_after
        return stall is not None and self.exchange.arrival.events >= stall

    def _cut(self, event: bytes) -> bool:
        """Break the connection if ``event`` is the one after the last that may pass."""
        after = self._timing.cut_after
        if after is None or self.exchange.arrival.events < after:
            return False
        how = self._timing.cut
        half = chunk(event)[: len(event) // 2] if how == "chunk" else b""
        self.exchange.cut(reset=how == "rst", part=half)
        self.drop()
        return True
