"""The workers of a run as processes, and their faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.processes import NotStarted, Processes, ask
from tests.chaos.run.plan import (
    CLOSE_IDLE,
    ELSE_REQUESTS,
    END,
    KILL,
    LOSE_HOST,
    MOOD_REQUESTS,
    MOVE,
    STOP,
    VANISH,
    Fault,
)
from tests.chaos.run.records import Life, WorkerAbort, WorkerMilestone, read
from tests.support.hosts import ALSO_THERE, THERE, OtherHost

#: The addresses between which the name of a worker moves; it listens on both.
ADDRESSES = ("127.0.0.1", "127.0.0.2")
#: The worker on the other host.
APART = 0


class Workers:
    """Worker processes, one for each of ``kinds``. ``store`` is the file of their records, ``names`` that of
    their addresses by name, ``delay`` the time between two tokens in seconds. If there is another host,
    ``there``, the worker APART is on it.
    """

    def __init__(
        self,
        processes: Processes,
        kinds: Sequence[str],
        store: Path,
        names: Path,
        delay: float,
        there: OtherHost | None = None,
    ) -> None:
        self.lives: list[Life] = []
        self.ports = [processes.port() for _ in kinds]
        self.kinds = kinds
        self._processes = processes
        self._store = store
        self._names = names
        self._there = there
        self._addresses = {f"worker-{n}.chaos": self._homes(n)[0] for n in range(len(kinds))}
        self._delay = delay
        self._running: list[subprocess.Popen[bytes]] = []
        self._now: list[Life] = []
        self._gone: set[int] = set()
        for number in range(len(kinds)):
            self._running.append(self._start(number))
        self._publish()

    def wait(self) -> None:
        """Return once all workers answer. Raises NotStarted."""
        for number, process in enumerate(self._running):
            self._processes.wait(
                f"worker-{number}-1", process, self.ports[number], "/_sim/stats", host=self._homes(number)[0]
            )

    def begin(self, fault: Fault) -> None:
        number, process = fault.worker, self._running[fault.worker]
        if fault.what in (KILL, LOSE_HOST):
            if fault.what == LOSE_HOST and self._there is not None:
                # First, so that no FIN or RST of the process that is killed arrives.
                self._there.disconnect()
            process.kill()
            process.wait()
            self._now[number].ended = time.monotonic()
        elif fault.what == STOP:
            os.kill(process.pid, signal.SIGSTOP)
            self._now[number].stops.append((time.monotonic(), float("inf")))
        elif fault.what == VANISH:
            self._gone.add(number)
            self._publish()
        elif fault.what == MOVE:
            name = f"worker-{number}.chaos"
            homes = self._homes(number)
            self._addresses[name] = homes[self._addresses[name] == homes[0]]
            self._publish()
        elif fault.what in (CLOSE_IDLE, END):
            self._tell(number, {"do": fault.what})
        else:
            times = MOOD_REQUESTS.get(fault.what, ELSE_REQUESTS)
            self._tell(number, {"do": "mood", "mood": fault.what, "times": times})

    def end(self, fault: Fault) -> None:
        number, process = fault.worker, self._running[fault.worker]
        if fault.what in (KILL, LOSE_HOST):
            if fault.what == LOSE_HOST and self._there is not None:
                self._there.reconnect()
            self._running[number] = self._start(number)
        elif fault.what == END:
            process.kill()  # what an orchestrator does if it goes on for too long
            process.wait()
            self._now[number].ended = time.monotonic()
            self._running[number] = self._start(number)
        elif fault.what == STOP:
            os.kill(process.pid, signal.SIGCONT)
            stops = self._now[number].stops
            stops[-1] = (stops[-1][0], time.monotonic())
        elif fault.what == VANISH:
            self._gone.discard(number)
            self._publish()
        elif fault.what not in (CLOSE_IDLE, MOVE):
            self._tell(number, {"do": "calm"})

    def busy(self) -> int:
        """Return the number of requests that the workers process."""
        replies = [
            ask(port, "GET", "/_sim/stats", host=self._homes(number)[0])
            for number, port in enumerate(self.ports)
        ]
        stats = [json.loads(body) for status, body in replies if status == 200]
        return sum(each["running"] + each["waiting"] for each in stats)

    def books(self) -> tuple[list[WorkerMilestone], list[WorkerAbort]]:
        paths = [self._book(life.worker, life.life) for life in self.lives]
        milestones = [each for path in paths for each in read(path, WorkerMilestone)]
        return milestones, [each for path in paths for each in read(path, WorkerAbort)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        life = 1 + sum(each.worker == number for each in self.lives)
        kind = self.kinds[number]
        words = [kind, self.ports[number], number, life, self._delay, self._book(number, life)]
        with self._there.inside() if self._there is not None and number == APART else nullcontext():
            process = self._processes.start(
                f"worker-{number}-{life}",
                [sys.executable, "-m", "tests.chaos.run.worker", *map(str, words)],
                piped=True,
            )
        self.lives.append(Life(number, life, kind, time.monotonic()))
        self._now = [*self._now[:number], self.lives[-1], *self._now[number + 1 :]]
        return process

    def _homes(self, number: int) -> tuple[str, str]:
        """Return the addresses between which the name of the worker moves."""
        return ADDRESSES if self._there is None or number != APART else (THERE, ALSO_THERE)

    def _book(self, number: int, life: int) -> Path:
        return self._processes.folder / f"worker-{number}-{life}.book"

    def _tell(self, number: int, command: dict[str, object]) -> None:
        pipe = self._running[number].stdin
        if pipe is None or self._running[number].poll() is not None:
            raise NotStarted(f"worker {number} ended by itself; {self._processes.folder}")
        pipe.write(json.dumps(command).encode() + b"\n")
        pipe.flush()

    def _publish(self) -> None:
        """Replace each file with a new one in one step."""
        urls = [f"http://worker-{n}.chaos:{port}" for n, port in enumerate(self.ports) if n not in self._gone]
        for path, content in ((self._names, self._addresses), (self._store, {"workers": urls})):
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(content))
            fresh.replace(path)
