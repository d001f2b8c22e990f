"""Replies to probes, load balancers and scrapers, and the list of models."""

from __future__ import annotations

import pytest

from gateway.cards.values import CardValues
from gateway.fleet.states import WorkerEvent, WorkerState
from gateway.version import COMPILED, VERSION
from tests.control.support import SCRAPE, World, client, endpoint, others_of


async def test_health_lists_workers_with_state_and_load() -> None:
    """It is good without workers, too, and only of several processes it shows their number."""
    world = World()
    async with client(world) as http:
        reply = await http.get("/health")
        assert reply.status_code == 200
        shown = reply.json()
        assert (shown["status"], shown["endpoints"], shown["instances"]) == ("healthy", ["/generate"], [])
        assert "processes" not in shown
        world.add("http://a:1").in_flight = 3
        world.add("http://b:1", WorkerState.DEAD)
        assert (await http.get("/health")).json()["instances"] == [
            {"url": "http://a:1", "state": "ready", "in_flight": 3},
            {"url": "http://b:1", "state": "dead", "in_flight": 0},
        ]


@pytest.mark.parametrize("path", ["/live", "/liveness"])
async def test_gateway_that_drains_is_alive_but_neither_healthy_nor_ready(path: str) -> None:
    world = World()
    world.add("http://a:1")
    async with client(world) as http:
        for world.leaving in (False, True):
            reply = await http.get(path)
            assert reply.status_code == 200
            assert reply.json() == {"status": "live", "message": "Service is live"}
        health, ready = await http.get("/health"), await http.get("/ready")
    assert (health.status_code, ready.status_code) == (503, 503)
    assert (health.json()["status"], health.json()["stage"]) == ("not_ready", "draining")
    assert health.json()["message"] == "Service is not ready"
    assert ready.json()["message"] == "Service is draining"


@pytest.mark.parametrize("path", ["/ready", "/readiness", "/health_generate"])
async def test_ready_needs_a_usable_worker_of_one_endpoint(path: str) -> None:
    world = World()
    async with client(world, endpoint(), endpoint("/other", name="other", capability="other")) as http:
        assert (await http.get(path)).status_code == 503
        worker = world.add("http://a:1", WorkerState.JOINING)
        assert (await http.get(path)).status_code == 503
        world.fleet.apply_event(worker, WorkerEvent.SERVES)
        reply = await http.get(path)
    assert reply.status_code == 200
    assert reply.json() == {
        "status": "ready",
        "message": "Service is ready",
        "endpoints": [
            {"path": "/generate", "format": "sglang", "workers": 1},
            {"path": "/other", "format": "other", "workers": 0},
        ],
        "unusable": {},
    }


async def test_root_shows_name_version_and_endpoints() -> None:
    async with client(World()) as http:
        shown = (await http.get("/")).json()
    assert (shown["name"], shown["version"], shown["compiled"]) == ("tito-gateway", VERSION, COMPILED)
    assert shown["endpoints"] == ["/generate"]


@pytest.mark.parametrize(
    ("setting", "usual"),
    [
        ("health_path", "/health"),
        ("live_path", "/live"),
        ("metrics_path", "/metrics"),
        ("models_path", "/v1/models"),
    ],
)
async def test_paths_are_configurable(setting: str, usual: str) -> None:
    async with client(World(), **{setting: "/moved"}) as http:
        assert (await http.get("/moved")).status_code == 200
        assert (await http.get(usual)).status_code == 404


@pytest.mark.parametrize("path", ["/", "/health", "/live", "/ready", "/metrics", "/v1/models", "/workers"])
async def test_head_is_answered_like_get_without_a_body(path: str) -> None:
    world = World()
    world.add("http://a:1")
    async with client(world) as http:
        got, headed = await http.get(path), await http.head(path)
    assert headed.status_code == got.status_code == 200
    assert headed.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("settled", "Not all processes serve yet"),
        ("usable", "Not all processes have a usable worker yet"),
    ],
)
async def test_not_ready_before_all_processes_served_and_have_a_worker(missing: str, message: str) -> None:
    """Later, a process that restarts changes nothing: the others serve."""
    world, others = World(), others_of()
    world.add("http://a:1")
    setattr(others.state, missing, False)
    async with client(world, others=others) as http:
        reply = await http.get("/ready")
        assert (reply.status_code, reply.json()["message"]) == (503, message)
        setattr(others.state, missing, True)
        assert (await http.get("/ready")).status_code == 200


async def test_health_of_several_processes_has_their_number_and_the_sum_of_loads() -> None:
    world = World()
    world.add("http://a:1").in_flight = 3
    async with client(world, others=others_of({"http://a:1": 4})) as http:
        reply = (await http.get("/health")).json()
        assert (await http.get("/workers")).json()["workers"][0]["load"] == 7
    assert reply["instances"][0]["in_flight"] == 7
    assert reply["processes"] == {"wanted": 2, "serving": 1}


async def test_scrape_is_that_of_this_process_or_of_all_or_none() -> None:
    """A part of it would look like counters that decreased."""
    async with client(World()) as http:
        reply = await http.get("/metrics")
    assert (reply.content, reply.headers["content-type"]) == (b"a_metric 1\n", SCRAPE)
    others = others_of()
    async with client(World(), others=others) as http:
        reply = await http.get("/metrics")
        assert (reply.status_code, reply.content) == (200, b"of_all 1\n")
        others.metrics.return_value = None
        reply = await http.get("/metrics")
    assert reply.status_code == 503 and "cannot be asked" in reply.json()["message"]


async def test_each_model_of_a_usable_worker_is_listed_and_found_by_its_id() -> None:
    """An id may have slashes."""
    world = World()
    async with client(world) as http:
        assert (await http.get("/v1/models")).json() == {"object": "list", "data": []}
        world.add("http://a:1", models=("org/base", "adapter"), card=CardValues(context_length=4096))
        world.add("http://b:1", WorkerState.DEAD, models=("gone",))
        body = (await http.get("/v1/models")).json()
        assert body["object"] == "list"
        assert [model["id"] for model in body["data"]] == ["org/base", "adapter"]
        first = body["data"][0]
        assert (first["max_model_len"], first["context_window"]) == (4096, 4096)
        assert (first["object"], first["owned_by"]) == ("model", "eng")
        assert (first["root"], first["parent"], first["permission"]) == ("org/base", None, [])
        assert isinstance(first["created"], int)
        assert (await http.get("/v1/models/org/base")).json() == first
        reply = await http.get("/v1/models/gone")
    assert reply.status_code == 404
    assert reply.json() == {"message": "Model not found", "type": "Not Found", "code": 404}
