"""The load of an SGLang server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.optional import WorkerHealth, WorkerLoad
from gateway.formats.sglang import FORMAT
from gateway.formats.sglang.load import GET_LOAD, LOADS
from gateway.formats.worker_contract import ProbeReply


def rank(running: int, waiting: int, usage: Any = 0.5) -> dict[str, Any]:
    return {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting, "token_usage": usage}


def read(question: Any, body: Any, status: int = 200) -> WorkerLoad | None:
    return FORMAT.read_load(question, ProbeReply(status, json.dumps(body).encode()))


def test_ranks_are_added_up() -> None:
    assert read(LOADS, {"loads": [rank(2, 1, 0.25), rank(3, 0, 0.75)]}) == WorkerLoad(5, 1, 0.75)
    assert read(LOADS, {"loads": [rank(2, 1, None)]}) == WorkerLoad(2, 1, None)


def test_builds_before_it_count_those_that_wait_twice() -> None:
    body = [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 9}]
    assert read(GET_LOAD, body) == WorkerLoad(3, 2)


@pytest.mark.parametrize("body", [{}, {"loads": []}, {"loads": [{}]}, [], {"loads": [rank(-1, 0)]}, None])
def test_answer_that_does_not_tell(body: Any) -> None:
    assert read(LOADS, body) is None


def test_route_that_is_missing() -> None:
    """A 404 does not tell the load."""
    assert read(LOADS, {"loads": [rank(1, 1)]}, 404) is None
    assert read(GET_LOAD, [], 200) is None


@pytest.mark.parametrize(
    ("status", "health"),
    [
        (200, WorkerHealth.GOOD),
        (404, WorkerHealth.GOOD),
        (503, WorkerHealth.BUSY),
        (500, WorkerHealth.BAD),
        (401, WorkerHealth.BAD),
    ],
)
def test_answer_to_the_health_question(status: int, health: WorkerHealth) -> None:
    """A paused server answers 503, and is alive."""
    assert FORMAT.read_health(ProbeReply(status, b"")) is health
