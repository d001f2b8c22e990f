"""The growth of cost with the number of workers, open exchanges and prompt ids, and with the size of an
event.

Owns: how each curve is measured. Must never enter: the fit, drawing.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.bench import Bench, Sample
from benchmarks.bounds import SILENCE
from benchmarks.curves import Curve
from benchmarks.dialects import SGLANG, Knobs
from benchmarks.generators import Load
from benchmarks.processes import ask, end
from benchmarks.targets import Target
from benchmarks.workers import Workers, start_workers

WORKERS = (2, 16, 64, 512)
EXCHANGES = (10, 100, 1000, 5000)
PROMPTS = (10, 100, 1000, 10_000, 128_000)
EVENTS = (200, 2_000, 20_000, 60_000, 200_000, 600_000, 2_000_000)
#: Seconds in which the gateway probes each worker once: a shorter load may contain no probe.
PROBES = 5.0

UNARY = Load(SGLANG.path, SGLANG.request(8, 1), 32, wrk=True)


@dataclass(frozen=True)
class PointSetup:
    """The target of one point of a curve, with its ``workers`` if it has its own."""

    target: Target
    load: Load
    workers: Workers | None = None


def workers(bench: Bench) -> list[Curve]:
    """Measure the unary load with more and more workers, and their cost while no request arrives."""
    spots = {}
    for count in WORKERS:
        fleet = start_workers(bench.processes, count, in_task=1, name=f"fleet-{count}")
        gateway = bench.gateway(f"gateway-{count}w", fleet.ports)
        _all_known(gateway, count)
        spots[count] = PointSetup(gateway, UNARY, fleet)
    idle = _idle_shares({count: spot.target for count, spot in spots.items()}, 2 * PROBES)
    # The first load opens the connections to the workers.
    for spot in spots.values():
        bench.sample(spot.target, spot.load, 1, spot.workers)
    samples = _interleaved(bench, spots, PROBES)
    for spot in spots.values():
        end(spot.target.process)
    return [
        Curve(
            "workers",
            "A request, as workers are added",
            "workers",
            "CPU us a request",
            [(n, _median(partial(_without_probes, idle[n]), taken)) for n, taken in samples.items()],
            note="one token, 32 connections, without the probes",
        ),
        Curve(
            "probing",
            "Knowing the workers, while nothing is asked",
            "workers",
            "CPU ms a second",
            [(n, max(0.1, 1000 * share)) for n, share in idle.items()],
            note="each is probed every 5 s",
        ),
    ]


def exchanges(bench: Bench) -> list[Curve]:
    """Measure the unary load while more and more streams are open and silent."""
    silent = SGLANG.request(8, 2, stream=True, knobs=Knobs(pause_us=SILENCE))
    spots, errors = {}, 0
    for count in EXCHANGES:
        gateway = bench.gateway(f"gateway-{count}x")
        streams = min(count, bench.scale.connections)
        errors += bench.second.open(gateway.port, Load(SGLANG.path, silent, streams))
        spots[count] = PointSetup(gateway, UNARY)
    samples = _interleaved(bench, spots)
    bench.second.close()
    for spot in spots.values():
        end(spot.target.process)
    return [
        Curve(
            "exchanges",
            "A request, as other exchanges are open",
            "open exchanges beside it",
            "CPU us a request",
            [(n, _median(_request, taken)) for n, taken in samples.items()],
            others=True,
            note=f"one token, 32 connections; {errors} errors",
        )
    ]


def prompts(bench: Bench) -> list[Curve]:
    """Measure a request with a longer and longer prompt."""
    gateway = bench.gateway("gateway-prompts")
    spots = {n: PointSetup(gateway, Load(SGLANG.path, SGLANG.request(n, 1), 8, wrk=True)) for n in PROMPTS}
    samples = _interleaved(bench, spots)
    end(gateway.process)
    points = [(n, _median(_request, taken)) for n, taken in samples.items()]
    title = "A request, as its prompt grows"
    return [Curve("prompts", title, "prompt ids", "CPU us a request", points, note="8 connections")]


def events(bench: Bench) -> list[Curve]:
    """Measure an event of more and more bytes."""
    gateway = bench.gateway("gateway-events")
    spots = {size: PointSetup(gateway, _stream_of(size)) for size in EVENTS}
    samples = _interleaved(bench, spots)
    end(gateway.process)
    points = [(size, _median(_event, taken)) for size, taken in samples.items()]
    note = "16 streams, an event each 4 ms at most; requests included"
    return [Curve("events", "An event, as it grows", "bytes an event", "CPU us an event", points, note=note)]


def _stream_of(size: int) -> Load:
    """Return a load of paced events (small events would be read together otherwise), short if the events are
    large.
    """
    body = SGLANG.request(8, 64 if size < 100_000 else 16, stream=True, knobs=Knobs(pause_us=4000, size=size))
    return Load(SGLANG.path, body, 16)


def _interleaved(
    bench: Bench, spots: Mapping[int, PointSetup], seconds: float | None = None
) -> dict[int, list[Sample]]:
    samples: dict[int, list[Sample]] = {size: [] for size in spots}
    for number in range(bench.scale.growth_rounds):
        bench.say(f"round {number + 1} of {bench.scale.growth_rounds}, at {', '.join(map(str, spots))}")
        for size, spot in spots.items():
            took = seconds or bench.scale.seconds
            samples[size].append(bench.sample(spot.target, spot.load, took, spot.workers))
    return samples


def _median(cost: Callable[[Sample], float], taken: Sequence[Sample]) -> float:
    return statistics.median(map(cost, taken))


def _request(sample: Sample) -> float:
    return sample.request_us


def _event(sample: Sample) -> float:
    return sample.event_us


def _without_probes(share: float, sample: Sample) -> float:
    return sample.request_us - share * sample.seen.seconds * 1e6 / max(1, sample.seen.replies)


def _all_known(gateway: Target, count: int) -> None:
    """Return once the gateway knows all its workers, or after a timeout."""
    for _ in range(400):
        endpoints = json.loads(ask(gateway.port, "GET", "/ready")[1]).get("endpoints", [])
        if any(each["workers"] >= count for each in endpoints):
            return
        time.sleep(0.05)


def _idle_shares(gateways: Mapping[int, Target], seconds: float) -> dict[int, float]:
    """Return the share of a core that each process uses while no request arrives."""
    before = {size: gateway.cpu_seconds() for size, gateway in gateways.items()}
    time.sleep(seconds)
    return {size: (gateway.cpu_seconds() - before[size]) / seconds for size, gateway in gateways.items()}


#: Name on the command line -> measurement, which may return several curves.
CURVES: dict[str, Callable[[Bench], list[Curve]]] = {
    "workers": workers,
    "exchanges": exchanges,
    "prompts": prompts,
    "events": events,
}
