"""The load of a vLLM server."""

from __future__ import annotations

import pytest

from gateway.formats.optional import WorkerHealth, WorkerLoad
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.load import LOAD, METRICS
from gateway.formats.worker_contract import ProbeReply

TEXT = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b} 9"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="1"} 70.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.125
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 2.5e-1
"""


def test_engines_of_the_metrics_are_added_up() -> None:
    """Other rows with a similar name are ignored."""
    assert FORMAT.read_load(METRICS, ProbeReply(200, TEXT)) == WorkerLoad(5, 5, 0.25)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"vllm:num_requests_waiting{} 1.0\n",
        b"vllm:num_requests_running{} NaN\n",
        b"vllm:num_requests_running{} 1e999\n",
        b"vllm:num_requests_running{} 1-2\n",
        b"vllm:num_requests_running{} -1\n",
    ],
)
def test_metrics_that_do_not_tell(body: bytes) -> None:
    assert FORMAT.read_load(METRICS, ProbeReply(200, body)) is None


@pytest.mark.parametrize(
    ("body", "load"),
    [
        (b'{"server_load": 3}', WorkerLoad(3, 0)),
        (b'{"server_load": 0}', None),
        (b'{"server_load": -1}', None),
        (b"[]", None),
        (b"\xff", None),
    ],
)
def test_tracked_load_above_0_is_used(body: bytes, load: WorkerLoad | None) -> None:
    """It stays at 0 on a server that does not track, so a 0 is ignored."""
    assert FORMAT.read_load(LOAD, ProbeReply(200, body)) == load


def test_route_that_is_missing() -> None:
    assert FORMAT.read_load(METRICS, ProbeReply(404, TEXT)) is None


def test_health_that_fails_is_bad() -> None:
    """This engine answers 503 when its core has crashed."""
    assert FORMAT.read_health(ProbeReply(503, b"")) is WorkerHealth.BAD
