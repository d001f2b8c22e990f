"""The list of models."""

from __future__ import annotations

from gateway.fleet.states import WorkerState
from tests.control.support import World, client


async def test_each_model_of_a_usable_worker_is_listed_with_its_context_length() -> None:
    world = World()
    world.add("http://a:1", models=("org/base", "adapter"), context_length=4096)
    world.add("http://b:1", WorkerState.DEAD, models=("gone",))
    async with client(world) as http:
        body = (await http.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["org/base", "adapter"]
    first = body["data"][0]
    assert (first["max_model_len"], first["context_window"]) == (4096, 4096)
    assert (first["object"], first["owned_by"]) == ("model", "eng")
    assert isinstance(first["created"], int)


async def test_list_is_empty_without_workers() -> None:
    async with client(World()) as http:
        assert (await http.get("/v1/models")).json() == {"object": "list", "data": []}


async def test_one_model_is_found_by_an_id_with_slashes() -> None:
    world = World()
    world.add("http://a:1", models=("org/base",))
    async with client(world) as http:
        reply = await http.get("/v1/models/org/base")
        listed = (await http.get("/v1/models")).json()["data"]
    assert reply.status_code == 200
    assert listed == [reply.json()]


async def test_unknown_model_is_a_flat_404() -> None:
    async with client(World()) as http:
        reply = await http.get("/v1/models/none")
    assert reply.status_code == 404
    assert reply.json() == {"message": "Model not found", "type": "Not Found", "code": 404}


async def test_path_is_configurable() -> None:
    world = World()
    world.add("http://a:1")
    async with client(world, models_path="/models") as http:
        assert (await http.get("/models/m")).status_code == 200
        assert (await http.get("/v1/models")).status_code == 404
