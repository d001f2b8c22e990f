"""A gateway, its workers and its clients as processes, and the rounds of a run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import procfs
from benchmarks.processes import Processes, end
from gateway.settings.environment import variables
from gateway.sim.config import SGLANG, VLLM
from tests.chaos.run import watch
from tests.chaos.run.fleet import Workers
from tests.chaos.run.plan import Fault
from tests.chaos.run.records import Books, ClientRecord, End, read
from tests.support.hosts import OtherHost

KINDS = (SGLANG, VLLM, SGLANG, VLLM)
#: The number of processes among which the clients of a round are divided.
CROWDS = 2
#: Its module replaces the system's resolver in the processes of the gateway.
NAMES = Path(__file__).parent / "names"
#: Seconds after which the gateway must hold nothing: idle connections are closed after 3.5.
SETTLE = 15.0
#: Seconds after a round in which its last replies may arrive.
LATE = 60.0
GAUGES = ("inflight_requests", "queued_requests", "held_requests", "worker_inflight_requests")


@dataclass(frozen=True)
class Load:
    """The load of a round: ``clients`` with a ``profile`` (choices.PROFILES), and the workers' ``delay``
    between tokens.
    """

    profile: str
    clients: int
    delay: float


class Rig:
    """All processes of a run; the gateway is started once."""

    def __init__(
        self,
        processes: Processes,
        seed: str,
        load: Load,
        gateways: int = 1,
        there: OtherHost | None = None,
    ) -> None:
        """Start the workers, one of them on the host ``there``, and the gateway, which has ``gateways``
        processes. Raises NotStarted.
        """
        self._processes = processes
        self._seed = seed
        self._load = load
        store = processes.folder / "workers.json"
        names = processes.folder / "names.json"
        self.workers = Workers(processes, KINDS, store, names, load.delay, there)
        self.workers.wait()
        self.port = processes.port()
        flags = {
            "--host": "127.0.0.1", "--port": self.port, "--probe-interval-secs": 1, "--processes": gateways,
            "--discovery-backend": "file", "--discovery-file": store,
        }  # fmt: skip
        words = [str(word) for flag in flags.items() for word in flag]
        command = [sys.executable, "-m", "gateway", "serve", *words]
        own = {name: value for name, value in variables().items() if not name.startswith("DYN_")}
        environment = {**own, "PYTHONPATH": f"{NAMES}:{Path.cwd()}", "CHAOS_NAMES": str(names)}
        self.gateway = processes.start("gateway", command, environment=environment)
        processes.wait("gateway", self.gateway, self.port, "/ready")

    def round(
        self,
        name: str,
        seconds: float,
        faults: Sequence[Fault] = (),
        each_second: Callable[[float], None] | None = None,
    ) -> None:
        """Run the clients for ``seconds``, with ``faults``; ``each_second`` gets the time since the start."""
        crowds = [self._crowd(name, number, seconds) for number in range(CROWDS)]
        steps: list[tuple[float, int, Callable[[], None]]] = []
        for fault in faults:
            steps.append((fault.at, 1, partial(self.workers.begin, fault)))
            steps.append((fault.until, 0, partial(self.workers.end, fault)))
        if each_second is not None:
            steps += [(at, 2, partial(each_second, float(at))) for at in range(1, int(seconds))]
        began = time.monotonic()
        for moment, _, step in sorted(steps, key=lambda entry: entry[:2]):
            time.sleep(max(0.0, began + moment - time.monotonic()))
            step()
        for crowd in crowds:
            crowd.wait(seconds + LATE)

    def rest(self) -> tuple[int, int]:
        """Wait until the gateway holds nothing; return its remaining sockets to workers and of clients."""
        deadline = time.monotonic() + SETTLE
        while True:
            held = watch.sockets(self.gateway.pid, self.port, self.workers.ports)
            idle = not any(held) and not any(self.in_flight().values()) and not self.workers.busy()
            if idle or time.monotonic() > deadline:
                return held
            time.sleep(0.1)

    def in_flight(self) -> dict[str, float]:
        """Return the number of running and queued requests, from the gateway's metrics."""
        found = watch.counters(self.port)
        return {name: watch.total(found, name) for name in GAUGES}

    def memory(self) -> int:
        return procfs.resident(self.gateway.pid)

    def books(self, memory_before: int, sockets: tuple[int, int]) -> Books:
        """End the gateway and return all records."""
        memory, in_flight, counters = self.memory(), self.in_flight(), watch.counters(self.port)
        end(self.gateway)
        milestones, aborts = self.workers.books()
        paths = sorted(self._processes.folder.glob("clients-*.book"))
        return Books(
            records=[record for path in paths for record in read(path, ClientRecord)],
            milestones=milestones,
            aborts=aborts,
            lives=self.workers.lives,
            lines=watch.access_lines(self._processes.log("gateway")),
            counters=counters,
            end=End(in_flight, *sockets, memory_before, memory, self.gateway.returncode),
        )

    def _crowd(self, name: str, number: int, seconds: float) -> subprocess.Popen[bytes]:
        count = self._load.clients // CROWDS
        book = self._processes.folder / f"clients-{name}-{number}.book"
        words = [self._seed, self.port, name, number * count, count, seconds, self._load.profile, book]
        return self._processes.start(
            f"clients-{name}-{number}", [sys.executable, "-m", "tests.chaos.run.client", *map(str, words)]
        )
