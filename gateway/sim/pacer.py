"""The timers of the sequences' steps.

Owns: the timers, shared by all sequences that are due together. Must never enter: what a step does.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

#: Seconds. Steps due within the same span share one timer, so 10,000 streams need few of them.
_SPAN = 0.001


class Timer:
    """A step to be run; ``cancel`` may be called at any time."""

    __slots__ = ("step",)

    def __init__(self, step: Callable[[], None]) -> None:
        self.step: Callable[[], None] | None = step

    def cancel(self) -> None:
        self.step = None


class Pacer:
    """Runs steps after a delay. Steps without a delay run in order in the next iteration of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: list[Timer] = []
        self._spans: dict[int, list[Timer]] = {}
        self._due: list[int] = []
        self._wakeup: asyncio.TimerHandle | None = None
        self._wakeup_span = 0

    def after(self, delay: float, step: Callable[[], None]) -> Timer:
        """Run ``step`` in ``delay`` seconds; zero or less means in the next iteration of the loop."""
        timer = Timer(step)
        if delay <= 0:
            if not self._ready:
                self._loop.call_soon(self._run_ready)
            self._ready.append(timer)
        else:
            self._at(int((self._loop.time() + delay) / _SPAN) + 1, timer)
        return timer

    def stop(self) -> None:
        """Cancel all steps."""
        for timers in (self._ready, *self._spans.values()):
            for timer in timers:
                timer.cancel()
        if self._wakeup is not None:
            self._wakeup.cancel()

    def _at(self, span: int, timer: Timer) -> None:
        timers = self._spans.get(span)
        if timers is not None:
            timers.append(timer)
            return
        self._spans[span] = [timer]
        heapq.heappush(self._due, span)
        if self._wakeup is None or span < self._wakeup_span:
            self._arm(span)

    def _arm(self, span: int) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
        self._wakeup_span = span
        self._wakeup = self._loop.call_at(span * _SPAN, self._run_due)

    def _run_ready(self) -> None:
        ready, self._ready = self._ready, []
        _run(ready)

    def _run_due(self) -> None:
        self._wakeup = None
        # The loop may call a little early; half a span makes such a call find its steps.
        now = self._loop.time() / _SPAN + 0.5
        while self._due and self._due[0] <= now:
            _run(self._spans.pop(heapq.heappop(self._due)))
        if self._due and (self._wakeup is None or self._due[0] < self._wakeup_span):
            self._arm(self._due[0])


def _run(timers: list[Timer]) -> None:
    for timer in timers:
        if timer.step is not None:
            timer.step()
