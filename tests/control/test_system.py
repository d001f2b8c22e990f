"""Replies to probes, load balancers and scrapers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.fleet.states import WorkerState
from gateway.version import COMPILED, VERSION
from tests.control.support import Others, World, client, endpoint


async def test_health_is_good_without_workers() -> None:
    async with client(World()) as http:
        reply = await http.get("/health")
    assert reply.status_code == 200
    assert reply.json()["status"] == "healthy"
    assert reply.json()["endpoints"] == ["/generate"]
    assert reply.json()["instances"] == []


async def test_health_lists_workers_with_state_and_load() -> None:
    world = World()
    world.add("http://a:1").in_flight = 3
    world.add("http://b:1", WorkerState.DEAD)
    async with client(world) as http:
        reply = await http.get("/health")
    assert reply.json()["instances"] == [
        {"url": "http://a:1", "state": "ready", "in_flight": 3},
        {"url": "http://b:1", "state": "dead", "in_flight": 0},
    ]


async def test_health_is_bad_while_draining() -> None:
    async with client(World(leaving=True)) as http:
        reply = await http.get("/health")
    assert reply.status_code == 503
    assert (reply.json()["status"], reply.json()["stage"]) == ("not_ready", "draining")
    assert reply.json()["message"] == "Service is not ready"


@pytest.mark.parametrize("path", ["/live", "/liveness"])
@pytest.mark.parametrize("draining", [False, True])
async def test_live_is_good_even_while_draining(path: str, draining: bool) -> None:
    async with client(World(leaving=draining)) as http:
        reply = await http.get(path)
    assert reply.status_code == 200
    assert reply.json() == {"status": "live", "message": "Service is live"}


@pytest.mark.parametrize("path", ["/ready", "/readiness", "/health_generate"])
async def test_ready_needs_a_usable_worker(path: str) -> None:
    world = World()
    async with client(world) as http:
        assert (await http.get(path)).status_code == 503
        worker = world.add("http://a:1", WorkerState.JOINING)
        assert (await http.get(path)).status_code == 503
        worker.state = WorkerState.READY
        assert (await http.get(path)).status_code == 200


async def test_ready_is_good_when_one_endpoint_of_two_has_a_worker() -> None:
    world = World()
    world.add("http://a:1")
    other = endpoint("/other", name="other", capability="other")
    async with client(world, endpoint(), other) as http:
        reply = await http.get("/ready")
    assert reply.status_code == 200
    assert reply.json() == {
        "status": "ready",
        "message": "Service is ready",
        "endpoints": [
            {"path": "/generate", "format": "sglang", "workers": 1},
            {"path": "/other", "format": "other", "workers": 0},
        ],
    }


async def test_ready_is_bad_while_draining() -> None:
    world = World(leaving=True)
    world.add("http://a:1")
    async with client(world) as http:
        reply = await http.get("/ready")
    assert reply.status_code == 503
    assert reply.json()["message"] == "Service is draining"


async def test_metrics_are_the_scrape_with_its_content_type() -> None:
    async with client(World()) as http:
        reply = await http.get("/metrics")
    assert reply.content == b"a_metric 1\n"
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_root_shows_name_version_and_endpoints() -> None:
    async with client(World()) as http:
        reply = await http.get("/")
    assert reply.status_code == 200
    assert reply.json()["name"] == "tito-gateway"
    assert reply.json()["version"] == VERSION
    assert reply.json()["compiled"] is COMPILED
    assert reply.json()["endpoints"] == ["/generate"]


async def test_paths_are_configurable() -> None:
    moved: dict[str, Any] = {"health_path": "/h", "live_path": "/l", "metrics_path": "/m"}
    async with client(World(), **moved) as http:
        assert [(await http.get(path)).status_code for path in ("/h", "/l", "/m")] == [200, 200, 200]
        assert [(await http.get(path)).status_code for path in ("/health", "/live", "/metrics")] == [404] * 3


@pytest.mark.parametrize("path", ["/", "/health", "/live", "/ready", "/metrics", "/v1/models", "/workers"])
async def test_head_is_answered_like_get_without_a_body(path: str) -> None:
    world = World()
    world.add("http://a:1")
    async with client(world) as http:
        got, headed = await http.get(path), await http.head(path)
    assert headed.status_code == got.status_code == 200
    assert headed.headers["content-type"] == got.headers["content-type"]


async def test_gateway_of_several_processes_is_not_ready_before_all_have_served() -> None:
    """Later, a process that restarts changes nothing: the others serve."""
    world, others = World(), Others(serving=1, settled=False)
    world.add("http://a:1")
    async with client(world, others=others) as http:
        reply = await http.get("/ready")
        assert (reply.status_code, reply.json()["message"]) == (503, "Not all processes serve yet")
        others.settled = True
        assert (await http.get("/ready")).status_code == 200


async def test_not_ready_while_another_process_has_no_worker_yet() -> None:
    """It may get connections, too."""
    world, others = World(), Others(usable=False)
    world.add("http://a:1")
    async with client(world, others=others) as http:
        reply = await http.get("/ready")
        assert (reply.status_code, reply.json()["message"]) == (
            503,
            "Not all processes have a usable worker yet",
        )
        others.usable = True
        assert (await http.get("/ready")).status_code == 200


async def test_health_of_several_processes_has_their_number_and_the_sum_of_loads() -> None:
    world = World()
    world.add("http://a:1").in_flight = 3
    async with client(world, others=Others(serving=1, elsewhere={"http://a:1": 4})) as http:
        reply = (await http.get("/health")).json()
        assert (await http.get("/workers")).json()["workers"][0]["load"] == 7
    assert reply["instances"][0]["in_flight"] == 7
    assert reply["processes"] == {"wanted": 2, "serving": 1}


async def test_health_of_one_process_has_no_processes_member() -> None:
    async with client(World()) as http:
        assert "processes" not in (await http.get("/health")).json()


async def test_scrape_of_several_processes_is_that_of_all_or_none() -> None:
    """A part of it would look like counters that decreased."""
    others = Others()
    async with client(World(), others=others) as http:
        reply = await http.get("/metrics")
        assert (reply.status_code, reply.content) == (200, b"of_all 1\n")
        others.scrape = None
        reply = await http.get("/metrics")
    assert reply.status_code == 503 and "cannot be asked" in reply.json()["message"]
