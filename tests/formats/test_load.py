"""The load and the health of a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.optional import WorkerHealth, WorkerLoad
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.sglang.load import GET_LOAD, LOADS
from gateway.formats.vllm import FORMAT as VLLM
from gateway.formats.vllm.load import LOAD, METRICS
from gateway.formats.worker_contract import ProbeReply


def rank(running: int, waiting: int, usage: Any = 0.5) -> dict[str, Any]:
    return {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting, "token_usage": usage}


NOTHING: list[Any] = [{}, {"loads": []}, {"loads": [{}]}, [], None]
UNTRACKED: list[Any] = [{"server_load": 0}, {"server_load": -1}, [], b"\xff"]
#: Counts of a build before ``LOADS``: those that wait are counted twice.
BEFORE = [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 9}]
#: Other rows with a similar name are ignored.
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


@pytest.mark.parametrize(
    ("format", "question", "body", "load"),
    [
        (SGLANG, LOADS, {"loads": [rank(2, 1, 0.25), rank(3, 0, 0.75)]}, WorkerLoad(5, 1, 0.75)),
        (SGLANG, LOADS, {"loads": [rank(2, 1, None)]}, WorkerLoad(2, 1, None)),
        (SGLANG, GET_LOAD, BEFORE, WorkerLoad(3, 2)),
        *((SGLANG, LOADS, body, None) for body in NOTHING),
        (SGLANG, LOADS, {"loads": [rank(-1, 0)]}, None),
        (SGLANG, GET_LOAD, [], None),
        (VLLM, METRICS, TEXT, WorkerLoad(5, 5, 0.25)),
        (VLLM, METRICS, b"", None),
        (VLLM, METRICS, b"vllm:num_requests_waiting{} 1.0\n", None),
        *(
            (VLLM, METRICS, b"vllm:num_requests_running{} %b\n" % odd, None)
            for odd in (b"NaN", b"1e999", b"1-2", b"-1")
        ),
        # It stays at 0 on a server that does not track.
        (VLLM, LOAD, {"server_load": 3}, WorkerLoad(3, 0)),
        *((VLLM, LOAD, body, None) for body in UNTRACKED),
    ],
)
def test_load_is_the_sum_of_what_the_server_tells(
    format: Any, question: Any, body: Any, load: WorkerLoad | None
) -> None:
    """A 404 does not tell it."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert format.read_load(question, ProbeReply(200, text)) == load
    assert format.read_load(question, ProbeReply(404, text)) is None


@pytest.mark.parametrize(
    ("format", "status", "health"),
    [
        (SGLANG, 200, WorkerHealth.GOOD),
        (SGLANG, 404, WorkerHealth.GOOD),
        (SGLANG, 503, WorkerHealth.BUSY),
        (SGLANG, 500, WorkerHealth.BAD),
        (SGLANG, 401, WorkerHealth.BAD),
        (VLLM, 503, WorkerHealth.BAD),
    ],
)
def test_answer_to_the_health_question(format: Any, status: int, health: WorkerHealth) -> None:
    """503 is a paused server of SGLang, which is alive, and a crashed core of vLLM."""
    assert format.read_health(ProbeReply(status, b"")) is health
