"""The schedule of faults by worker and time, all determined by the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.chaos.run.worker import MOODS

#: A worker's process is killed, or frozen; its record leaves the store; its idle connections are closed; its
#: engine is told to end; its name gets another address; its host loses its power, and gets it again.
KILL, STOP, VANISH, CLOSE_IDLE, END, MOVE = "kill", "stop", "vanish", "close idle", "end", "move"
LOSE_HOST = "lose host"
FAULTS = (KILL, STOP, VANISH, CLOSE_IDLE, END, MOVE, *MOODS)
#: Shortest and longest duration of each fault, in seconds; a mood also ends after so many requests.
_LASTS = {
    KILL: (0.3, 1.5),
    STOP: (0.3, 6.0),
    VANISH: (0.5, 2.0),
    CLOSE_IDLE: (0.0, 0.0),
    END: (2.0, 6.0),
    MOVE: (0.0, 0.0),
    LOSE_HOST: (2.0, 6.0),
}
_MOOD_LASTS = (0.4, 2.0)
#: The most requests that a mood affects. Few if it leaves them without a reply, because their clients wait
#: long.
MOOD_REQUESTS = {"silence": 5, "slow": 40, "fast failure": 400}
ELSE_REQUESTS = 25


@dataclass(frozen=True)
class Fault:
    """The fault ``what`` of ``worker``, from ``at`` (seconds since the start) for ``seconds``."""

    at: float
    worker: int
    what: str
    seconds: float

    @property
    def until(self) -> float:
        return self.at + self.seconds


def plan(seed: str, seconds: float, workers: int, apart: int | None = None) -> Sequence[Fault]:
    """Return faults for ``seconds``, in the order of their times; a worker has one at a time. The worker
    ``apart`` is on a host of its own, which is lost as well.

    Every kind occurs before any occurs again. The last ones end before the time is over.
    """
    choice = Random(seed)
    free = [0.5] * workers
    kinds = FAULTS if apart is None else (*FAULTS, LOSE_HOST)
    faults: list[Fault] = []
    bag: list[str] = []
    now = 0.5
    while True:
        bag = bag or choice.sample(kinds, len(kinds))
        what = bag.pop()
        lasts = choice.uniform(*_LASTS.get(what, _MOOD_LASTS))
        worker = choice.choice(
            [each for each in range(workers) if free[each] <= now] or [free.index(min(free))]
        )
        if what == LOSE_HOST and apart is not None:
            worker = apart
        at = max(now, free[worker])
        if at + lasts > seconds - 0.5:
            return sorted(faults, key=lambda fault: fault.at)
        faults.append(Fault(round(at, 3), worker, what, round(lasts, 3)))
        free[worker] = at + lasts + 0.2
        now += choice.uniform(0.2, 0.9)
