"""What probes, load balancers and scrapers are told."""

from __future__ import annotations

import pytest

from gateway.fleet.worker import WorkerState
from tests.control.support import World, client, endpoint


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
    async with client(World(draining=True)) as http:
        reply = await http.get("/health")
    assert reply.status_code == 503
    assert (reply.json()["status"], reply.json()["stage"]) == ("not_ready", "draining")
    assert reply.json()["message"] == "Service is not ready"


@pytest.mark.parametrize("path", ["/live", "/liveness"])
@pytest.mark.parametrize("draining", [False, True])
async def test_live_is_good_even_while_draining(path: str, draining: bool) -> None:
    async with client(World(draining=draining)) as http:
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
    world = World(draining=True)
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


async def test_root_says_what_answers_here() -> None:
    async with client(World()) as http:
        reply = await http.get("/")
    assert reply.status_code == 200
    assert reply.json()["name"] == "tito-gateway"
    assert reply.json()["endpoints"] == ["/generate"]


async def test_paths_can_be_moved() -> None:
    moved = {"health_path": "/h", "live_path": "/l", "metrics_path": "/m"}
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
