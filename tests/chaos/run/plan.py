"""Which fault befalls which worker, and when: all from the seed.

Owns: the schedule. Must never enter: doing any of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

#: A worker's process is killed, or frozen; its record leaves the store; its idle connections are closed.
KILL, STOP, VANISH, CLOSE_IDLE = "kill", "stop", "vanish", "close idle"
#: How its answers change, in the words of tests.chaos.run.worker.
MOODS = (
    "slow",
    "400",
    "429",
    "500",
    "503",
    "nonsense",
    "half",
    "drop",
    "drop early",
    "cut",
    "fail",
    "silence",
)
FAULTS = (KILL, STOP, VANISH, CLOSE_IDLE, *MOODS)
#: Shortest and longest time that each lasts, in seconds; a mood ends after so many requests as well.
_LASTS = {KILL: (0.3, 1.5), STOP: (0.3, 6.0), VANISH: (0.5, 2.0), CLOSE_IDLE: (0.0, 0.0)}
_MOOD_LASTS = (0.4, 2.0)
#: Requests that a mood befalls at most. One that hangs its requests takes few: their clients wait long.
MOOD_REQUESTS = {"silence": 5, "slow": 40}
ELSE_REQUESTS = 25


@dataclass(frozen=True)
class Fault:
    """``what`` befalls ``worker`` from ``at`` on for ``seconds``; both in seconds, ``at`` since the start."""

    at: float
    worker: int
    what: str
    seconds: float

    @property
    def until(self) -> float:
        return self.at + self.seconds


def plan(seed: str, seconds: float, workers: int) -> Sequence[Fault]:
    """Faults for ``seconds``, in the order of their times; one worker has one at a time.

    Every kind comes before any comes again. The last ones end before the time is over.
    """
    choice = Random(seed)
    free = [0.5] * workers
    faults: list[Fault] = []
    bag: list[str] = []
    now = 0.5
    while True:
        bag = bag or choice.sample(FAULTS, len(FAULTS))
        what = bag.pop()
        lasts = choice.uniform(*_LASTS.get(what, _MOOD_LASTS))
        worker = choice.choice([each for each in range(workers) if free[each] <= now] or [_first(free)])
        at = max(now, free[worker])
        if at + lasts > seconds - 0.5:
            return sorted(faults, key=lambda fault: fault.at)
        faults.append(Fault(round(at, 3), worker, what, round(lasts, 3)))
        free[worker] = at + lasts + 0.2
        now += choice.uniform(0.2, 0.9)


def _first(free: Sequence[float]) -> int:
    return min(range(len(free)), key=free.__getitem__)
