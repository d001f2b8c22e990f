"""The simulated worker executes the order of a request, and the load generator counts it exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from benchmarks.dialects import SGLANG, TEMPO_STAMPED, VLLM, Dialect, Knobs
from benchmarks.generators import Generator, Load, run_wrk, wrk_is_here
from benchmarks.processes import Processes, ask
from benchmarks.workers import Workers, start_workers


@dataclass
class Rig:
    processes: Processes
    workers: Workers
    generator: Generator

    @property
    def port(self) -> int:
        return self.workers.ports[0]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Processes() as processes:
        yield Rig(processes, start_workers(processes, 3, in_task=1), Generator(processes))


@pytest.mark.parametrize("dialect", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_worker_executes_the_order_of_a_request(rig: Rig, dialect: Dialect) -> None:
    """At each of its ports: a reply of that size, a stream of so many events and its end."""
    for port in rig.workers.ports:
        status, reply = ask(port, "POST", dialect.path, dialect.request(8, 1, knobs=Knobs(size=5000)))
        assert status == 200 and len(reply) == 5000
        assert json.loads(reply)
    _, reply = ask(rig.port, "POST", dialect.path, dialect.request(8, 5, stream=True, knobs=Knobs(size=700)))
    *events, done, rest = reply.split(b"\n\n")
    assert (len(events), done, rest) == (5, b"data: [DONE]", b"")
    assert all(len(event) + 2 >= 700 and json.loads(event.removeprefix(b"data: ")) for event in events)
    assert b'"finish_reason":null' in events[3] and b'"finish_reason":null' not in events[4]


@pytest.mark.parametrize("size", [0, 100_000], ids=["small", "large"])
@pytest.mark.parametrize("pause_us", [0, 1000], ids=["burst", "paced"])
def test_generator_counts_every_event_and_reply(rig: Rig, pause_us: int, size: int) -> None:
    body = SGLANG.request(8, 30, stream=True, knobs=Knobs(pause_us=pause_us, size=size))
    seen = rig.generator.once(rig.port, Load(SGLANG.path, body, 7))
    # The end of a stream is an event, too.
    assert (seen.replies, seen.events, seen.errors) == (7, 7 * 31, 0)


def test_unary_load_is_counted_with_its_latency(rig: Rig) -> None:
    seen = rig.generator.load(rig.port, Load(SGLANG.path, SGLANG.request(8, 1), 4), 0.2)
    assert seen.replies > 50 and seen.errors == 0
    assert seen.p50_ms is not None and seen.p99_ms is not None and 0 < seen.p50_ms <= seen.p99_ms
    assert 0 < seen.client_cpu <= 1.5


def test_requests_that_are_due_count_from_when_they_were(rig: Rig) -> None:
    """A slow reply delays the next request, and its latency includes the delay."""
    body = SGLANG.request(8, 1, knobs=Knobs(first_us=50_000))
    seen = rig.generator.load(rig.port, Load(SGLANG.path, body, 1, interval=0.01), 0.3)
    assert seen.max_ms is not None and seen.max_ms > 100


def test_slow_reader_takes_the_time_its_rate_says(rig: Rig) -> None:
    body = SGLANG.request(8, 1, knobs=Knobs(size=4_000_000))
    seen = rig.generator.once(rig.port, Load(SGLANG.path, body, 1), read_rate=20_000_000)
    assert seen.replies == 1 and seen.seconds >= 0.15


def test_open_streams_follow_the_tempo_with_their_delay(rig: Rig) -> None:
    rig.workers.tempo(100)
    body = SGLANG.request(8, 100_000, stream=True, knobs=Knobs(pace=TEMPO_STAMPED))
    assert rig.generator.open(rig.port, Load(SGLANG.path, body, 10)) == 0
    assert rig.workers.running() == 10
    seen = rig.generator.observe(0.3)
    assert 150 <= seen.events <= 450
    assert seen.delay_p99_ms is not None and seen.delay_p99_ms > 0
    rig.generator.close()


@pytest.mark.skipif(not wrk_is_here(), reason="wrk is not installed")
def test_wrk_is_read_right(rig: Rig) -> None:
    seen = run_wrk(rig.processes, rig.port, Load(SGLANG.path, SGLANG.request(8, 1), 2, wrk=True), 1)
    assert seen.errors == 0 and seen.p50_ms is not None and seen.p50_ms > 0
    assert seen.replies == pytest.approx(seen.replies_per_s * seen.seconds, rel=0.01)
