"""The metrics as Prometheus text.

Owns: the text format, and how tallies become rows of the families. Must never enter: updating the tallies,
I/O.

The text is not written by a client library, because one takes 8 us a line on the event loop, and a fleet of
512 workers has thousands of lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from gateway.errors import Cancelled
from gateway.fleet.roster import models_of
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.telemetry import families
from gateway.telemetry.families import CLASSES, REASONS, Family
from gateway.telemetry.tally import Histogram, ModelTally, Tallies
from gateway.version import COMPILED, VERSION

Rows = Iterable[tuple[tuple[str, ...], float]]


#: The member of a card in each family of sizes.
_SIZES = {
    families.CONTEXT: "context_length",
    families.KV_BLOCKS: "total_kv_blocks",
    families.KV_BLOCK_SIZE: "kv_cache_block_size",
    families.MAX_SEQUENCES: "max_num_seqs",
    families.MAX_BATCH_TOKENS: "max_num_batched_tokens",
}
_sizes_of = attrgetter(*_SIZES.values())


class Processes(NamedTuple):
    """The processes of the gateway.

    ``serving`` is how many serve, ``restarts`` how many were started to replace one that died, ``loads`` the
    requests that the other processes have in flight, by worker URL.
    """

    serving: int
    restarts: int
    loads: Mapping[str, int]


SINGLE_PROCESS = Processes(1, 0, MappingProxyType({}))


class CurrentValues(NamedTuple):
    """Functions that give the values read at each scrape.

    The workers, the access log lines lost so far, whether the store can be read, and the number of queued
    requests.
    """

    workers: Callable[[], Iterable[Worker]] = tuple
    dropped_lines: Callable[[], int] = int
    store_healthy: Callable[[], bool] = lambda: True
    waiting: Callable[[], int] = int


NO_VALUES = CurrentValues()


class Exposition:
    """The text of one gateway's metrics, whose names begin with ``<prefix>_``."""

    def __init__(
        self,
        prefix: str,
        tallies: Tallies,
        now: CurrentValues,
        processes: Processes = SINGLE_PROCESS,
    ) -> None:
        self._prefix = prefix
        self._tallies = tallies
        self._now = now
        self._processes = processes

    def text(self) -> str:
        """Return one scrape in the Prometheus text format 0.0.4."""
        self._tallies.count_begun()
        workers = list(self._now.workers())
        parts = (self._requests(), self._running(), self._models(), self._traffic(), self._fleet(workers))
        return "".join(chain(*parts, self._loop(), self._queue(), self._processes_and_build()))

    def _requests(self) -> Iterator[str]:
        begun, requests = self._tallies.begun, self._tallies.requests
        yield from self._plain(
            families.STARTED,
            (((model, operation, _type(s)), n) for (model, operation, s), n in begun.items()),
        )
        yield from self._plain(
            families.REQUESTS,
            (
                ((model, operation, _type(stream), "error" if error else "success", error), count)
                for (model, operation, stream, error), count in requests.items()
            ),
        )
        cancelled = {
            (model, operation, _type(s)): n
            for (model, operation, s, error), n in requests.items()
            if error == "cancelled"
        }
        yield from self._plain(families.CANCELLED, cancelled.items())
        disconnected = sum(
            count for (_, code), count in self._tallies.failures.items() if code == Cancelled.code
        )
        yield from self._plain(families.DISCONNECTED, [((), disconnected)])
        refused: Counter[tuple[str, ...]] = Counter()
        for (model, operation, _, error), count in requests.items():
            if error == "overload":
                refused[model, operation] += count
        yield from self._plain(families.REJECTED, refused.items())
        yield from self._plain(families.FAILURES, _failures(self._tallies.failures))

    def _running(self) -> Iterator[str]:
        # A model stays once it was shown, because a gauge that disappears reads as unknown, not as 0.
        active = dict.fromkeys(self._tallies.models, 0)
        queued = dict(active)
        for (model, _, _, _, waiting), count in self._tallies.running_now().items():
            active[model] = active.get(model, 0) + count
            queued[model] = queued.get(model, 0) + count * waiting
        yield from self._plain(families.INFLIGHT, _by_model(active))
        yield from self._plain(families.ACTIVE, _by_model(active))
        yield from self._plain(families.QUEUED, _by_model(queued))

    def _models(self) -> Iterator[str]:
        parts: tuple[tuple[Family, Callable[[ModelTally], Histogram]], ...] = (
            (families.DURATION, lambda tally: tally.duration),
            (families.ISL, lambda tally: tally.isl),
            (families.OSL, lambda tally: tally.osl),
            (families.CACHED, lambda tally: tally.cached),
            (families.TTFT, lambda tally: tally.ttft),
            (families.ITL, lambda tally: tally.itl),
        )
        models = self._tallies.models
        for family, part in parts:
            yield from self._histogram(family, (((model,), part(tally)) for model, tally in models.items()))
        yield from self._plain(
            families.OUTPUT, _by_model({model: tally.output_tokens for model, tally in models.items()})
        )

    def _traffic(self) -> Iterator[str]:
        formats = self._tallies.formats.items()
        yield from self._plain(families.RETRIES, (((name,), tally.retries) for name, tally in formats))
        yield from self._plain(
            families.REQUEST_BYTES, (((name,), tally.request_bytes) for name, tally in formats)
        )
        yield from self._plain(
            families.REPLY_BYTES, (((name,), tally.reply_bytes) for name, tally in formats)
        )
        yield from self._plain(
            families.REPLIES,
            (((name, end.value), n) for name, tally in formats for end, n in tally.endings.items()),
        )
        yield from self._plain(
            families.REFUSED,
            (((name, rule), n) for name, tally in formats for rule, n in tally.refused.items()),
        )
        unauthorized = self._tallies.unauthorized.items()
        yield from self._plain(families.UNAUTHORIZED, (((scope,), n) for scope, n in unauthorized))
        yield from self._plain(families.LIMITS, (((limit,), n) for limit, n in self._tallies.limits.items()))
        yield from self._plain(families.ROUTED, (((name,), tally.routed) for name, tally in formats))
        yield from self._plain(families.LOST_LINES, [((), self._now.dropped_lines())])

    def _loop(self) -> Iterator[str]:
        delay = self._tallies.loop_delay
        yield from self._histogram(families.LOOP_DELAY, [((), delay)])
        yield from self._plain(families.LOOP_STALLS, [((), delay.over(families.STALL_SECONDS))])

    def _fleet(self, workers: list[Worker]) -> Iterator[str]:
        yield from self._sizes(workers)
        loads = self._processes.loads
        yield from self._plain(
            families.WORKER_IN_FLIGHT,
            (((worker.url,), worker.in_flight + loads.get(worker.url, 0)) for worker in workers),
        )
        yield from self._plain(
            families.WORKER_STATE, (((worker.url, worker.state.value), 1) for worker in workers)
        )
        yield from self._states(workers)
        self._tallies.forget_served({worker.url for worker in workers})
        served = self._tallies.served.items()
        yield from self._plain(
            families.WORKER_REQUESTS, (((url, name, state.value), n) for (url, name, state), n in served)
        )
        yield from self._last_streams(workers)
        placed = self._tallies.placements.items()
        yield from self._plain(families.KEYED, (((placement.value,), n) for placement, n in placed))

    def _sizes(self, workers: list[Worker]) -> Iterator[str]:
        """Yield what the cards of workers have about their models: of each value the largest one."""
        ready: dict[str, float] = {}
        conflicts: dict[str, float] = {}
        largest: dict[Family, dict[str, float]] = {family: {} for family in _SIZES}
        for worker in workers:
            sizes = zip(largest.values(), _sizes_of(worker.card.values), strict=True)
            known = [(by_model, value) for by_model, value in sizes if value is not None]
            for info in worker.infos.values():
                usable = int(worker.usable and info.usable)
                models = models_of(worker, info)
                for model in models[:1]:
                    conflicts[model] = max(conflicts.get(model, 0), len(worker.card_conflicts))
                for model in models:
                    ready[model] = max(ready.get(model, 0), usable)
                    for by_model, value in known:
                        by_model[model] = max(by_model.get(model, 0), value)
        yield from self._plain(families.READY, _by_model(ready))
        yield from self._plain(families.CARD_CONFLICTS, _by_model(conflicts))
        for family, by_model in largest.items():
            yield from self._plain(family, _by_model(by_model))

    def _last_streams(self, workers: list[Worker]) -> Iterator[str]:
        rows: tuple[list[tuple[tuple[str, ...], float]], ...] = ([], [], [])
        for worker in workers:
            ttft, isl, gaps = self._tallies.last_streams.get(worker.url, (None, None, None))
            rank = worker.address.rank
            labels = (worker.url, "none" if rank is None else str(rank), families.WORKER_TYPE)
            itl = None if gaps is None else gaps.total / sum(gaps.counts)
            for found, value in zip(rows, (ttft, isl, itl), strict=True):
                if value is not None:
                    found.append((labels, value))
        for family, found in zip(
            (families.LAST_TTFT, families.LAST_ISL, families.LAST_ITL), rows, strict=True
        ):
            yield from self._plain(family, found)

    def _states(self, workers: list[Worker]) -> Iterator[str]:
        # Always all states, because a gauge that disappears reads as unknown, not as 0.
        counts: dict[WorkerState, int] = {state: 0 for state in WorkerState if state is not WorkerState.GONE}
        for worker in workers:
            counts[worker.state] += 1
        yield from self._plain(families.WORKERS, (((state.value,), n) for state, n in counts.items()))
        yield from self._plain(families.STORE_HEALTHY, [((), int(self._now.store_healthy()))])
        transitions = self._tallies.transitions.items()
        yield from self._plain(
            families.TRANSITIONS, (((old.value, new.value), n) for (old, new), n in transitions)
        )
        reported = [(worker.url, worker.vitals.reported) for worker in workers]
        yield from self._plain(
            families.WORKER_RUNNING, (((url,), load.running) for url, load in reported if load is not None)
        )
        yield from self._plain(
            families.WORKER_WAITING, (((url,), load.waiting) for url, load in reported if load is not None)
        )

    def _queue(self) -> Iterator[str]:
        yield from self._plain(families.WAITING, [((), self._now.waiting())])
        yield from self._histogram(families.WAITED, [((), self._tallies.waits)])
        yield from self._plain(
            families.NOT_HELD, (((why,), n) for why, n in self._tallies.queue_refused.items())
        )

    def _processes_and_build(self) -> Iterator[str]:
        yield from self._plain(families.PROCESSES, [((), self._processes.serving)])
        yield from self._plain(families.PROCESS_RESTARTS, [((), self._processes.restarts)])
        yield from self._plain(families.BUILD, [((VERSION, str(COMPILED).lower()), 1)])

    def _plain(self, family: Family, rows: Rows) -> Iterator[str]:
        yield self._head(family)
        line = f"{self._prefix}_{family.name}{_labels(family.labels)} %s\n"
        for values, number in rows:
            yield line % (*map(_escaped, values), number)

    def _histogram(self, family: Family, rows: Iterable[tuple[tuple[str, ...], Histogram]]) -> Iterator[str]:
        yield self._head(family)
        name, labels = f"{self._prefix}_{family.name}", _labels(family.labels)
        bucket = f"{name}_bucket{_labels((*family.labels, 'le'))} %s\n"
        ends = f"{name}_sum{labels} %s\n", f"{name}_count{labels} %s\n"
        for values, histogram in rows:
            escaped = tuple(map(_escaped, values))
            count = 0
            for bound, count in histogram.cumulative():
                yield bucket % (*escaped, bound, count)
            yield ends[0] % (*escaped, histogram.total)
            yield ends[1] % (*escaped, count)

    def _head(self, family: Family) -> str:
        name = f"{self._prefix}_{family.name}"
        return f"# HELP {name} {family.text}\n# TYPE {name} {family.kind}\n"


def _labels(names: tuple[str, ...]) -> str:
    pairs = ",".join(f'{name}="%s"' for name in names)
    return f"{{{pairs}}}" if names else ""


def _escaped(value: str) -> str:
    if '"' in value or "\\" in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def _type(stream: bool) -> str:
    return "stream" if stream else "unary"


def _by_model(values: Mapping[str, float]) -> Rows:
    return (((model,), value) for model, value in values.items())


def _failures(tally: Mapping[tuple[str, str | None], int]) -> Rows:
    rows: Counter[tuple[str, ...]] = Counter()
    for (error_type, code), count in tally.items():
        rows[CLASSES.get(error_type, "Internal"), REASONS.get(code, f"gateway.{code}")] += count
    return rows.items()
