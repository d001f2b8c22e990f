"""The HTTP answer to one request, unary or as events, made from its sequences.

Owns: when an event is due, what a slow reader gets, where an answer stalls or breaks. Must never enter: a
dialect (it renders the bytes), admission.
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
    """The part of a dialect that renders the replies to one request."""

    def event(self, sequence: Sequence, sent: int, *, first: bool) -> bytes:
        """Return the event for the output after its first ``sent`` tokens; the last event if the sequence is
        finished.
        """
        ...

    def closing(self, sequences: list[Sequence]) -> bytes:
        """Return the events that follow the end of the last sequence."""
        ...

    def unary(self, sequences: list[Sequence]) -> tuple[int, bytes]:
        """Return status and body of the unary answer."""
        ...


class Answer:
    """The answer to one request; base class of unary and streamed answers."""

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
        """Submit ``sequences``. The answer is complete when all of them have ended."""
        self.sequences = sequences
        self._remaining = len(sequences)
        for sequence in sequences:
            if not self.exchange.done:
                submit(sequence)

    def ready(self) -> bool:
        return True

    def progress(self, sequence: Sequence) -> None:
        """Do nothing: a unary answer is written at its end."""

    def finished(self, sequence: Sequence) -> None:
        if sequence.finish is not None and sequence.finish.kind == "abort":
            self._log.record(self.exchange.arrival, Milestone.ABORTED)
        self._remaining -= 1

    def drop(self) -> None:
        """Stop the sequences that still run; the client gets nothing more."""
        for sequence in self.sequences:
            if sequence.finish is None:
                self._scheduler.drop(sequence)
                self._log.record(self.exchange.arrival, Milestone.ABORTED)


class UnaryAnswer(Answer):
    """A unary answer: one body at the end.

    With ``stall_after`` the body is never sent, with ``cut_after`` half of it is.
    """

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
    """A streamed answer: one event for the first token, then one for each ``interval`` tokens."""

    streams = True

    def __init__(
        self, engine: Engine, exchange: Exchange, timing: Timing, renderer: Renderer, interval: int
    ) -> None:
        super().__init__(engine, exchange, timing, renderer)
        self._interval = interval
        self._merge = engine.config.merge_unread
        self._sent: dict[int, int] = {}
        #: Sequences with an event that could not be written because the client reads too slowly.
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
        """Break the connection if ``event`` comes after the last event allowed. Return True if it was
        broken.
        """
        after = self._timing.cut_after
        if after is None or self.exchange.arrival.events < after:
            return False
        how = self._timing.cut
        half = chunk(event)[: len(event) // 2] if how == "chunk" else b""
        self.exchange.cut(reset=how == "rst", part=half)
        self.drop()
        return True
