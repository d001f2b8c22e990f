"""The list of workers."""

from __future__ import annotations

from gateway.fleet.worker import Address, Worker, WorkerState
from tests.control.support import World, client


async def test_worker_is_listed_with_what_is_known_of_it() -> None:
    world = World()
    world.add("http://a:1", version="1.2", context_length=4096, stream_mode="cumulative").in_flight = 2
    async with client(world) as http:
        body = (await http.get("/workers")).json()
    (entry,) = body["workers"]
    assert body["total"] == 1
    assert entry.pop("id")
    assert entry == {
        "url": "http://a:1",
        "model_id": "m",
        "is_healthy": True,
        "load": 2,
        "worker_type": "regular",
        "state": "ready",
        "reason": "",
        "engine": "eng",
        "version": "1.2",
        "offers": [
            {
                "format": "sglang",
                "usable": True,
                "reason": "",
                "engine": "eng",
                "version": "1.2",
                "models": ["m"],
                "context_length": 4096,
                "stream_mode": "cumulative",
                "weight_version": None,
            }
        ],
    }


async def test_worker_that_never_answered_is_listed_with_the_reason() -> None:
    world = World(workers=[Worker(Address.parse("http://a:1"))])
    async with client(world) as http:
        (entry,) = (await http.get("/workers")).json()["workers"]
    assert (entry["is_healthy"], entry["state"], entry["reason"]) == (False, "joining", "not probed yet")
    assert (entry["model_id"], entry["engine"], entry["offers"]) == (None, None, [])


async def test_id_of_a_worker_stays_the_same() -> None:
    world = World()
    world.add("http://a:1")
    world.add("http://b:1", WorkerState.DEAD)
    async with client(world) as http:
        first = (await http.get("/workers")).json()["workers"]
        world.workers.reverse()
        second = (await http.get("/workers")).json()["workers"]
    assert [entry["id"] for entry in first] == [entry["id"] for entry in reversed(second)]
    assert first[0]["id"] != first[1]["id"]


async def test_key_of_a_worker_is_never_shown() -> None:
    world = World()
    world.add("http://a:1").authorization = b"Bearer hunter2"
    async with client(world) as http:
        for path in ("/workers", "/health", "/ready", "/v1/models"):
            assert "hunter2" not in (await http.get(path)).text
