"""Abort calls of clients."""

from __future__ import annotations

import json

from gateway.control.aborts import BODY_LIMIT
from gateway.formats.optional import AbortTarget
from tests.control.support import Result, World, client, endpoint


async def test_named_ids_are_aborted_in_the_format_of_the_path() -> None:
    world = World(results=[Result("http://a:1", 1), Result("http://b:1", 2)])
    async with client(world) as http:
        reply = await http.post("/abort_request", content=b"x,y")
    assert world.aborted == [(AbortTarget(ids=("x", "y")), "sglang")]
    assert reply.status_code == 200
    assert reply.json() == {
        "aborted": 3,
        "results": [
            {"worker": "http://a:1", "aborted": 1, "error": None},
            {"worker": "http://b:1", "aborted": 2, "error": None},
        ],
    }


async def test_id_that_is_not_in_flight_is_no_failure() -> None:
    async with client(World()) as http:
        reply = await http.post("/abort_request", content=b"unknown")
    assert reply.status_code == 200
    assert reply.json() == {"aborted": 0, "results": []}


async def test_failure_at_one_worker_is_a_207_with_all_results() -> None:
    world = World(results=[Result("http://a:1", 1), Result("http://b:1", 0, "refused")])
    async with client(world) as http:
        reply = await http.post("/abort_request", content=b"x")
    assert reply.status_code == 207
    assert reply.json()["aborted"] == 1
    assert reply.json()["results"][1]["error"] == "refused"


async def test_failure_at_all_workers_is_a_502() -> None:
    async with client(World(results=[Result("http://b:1", 0, "refused")])) as http:
        assert (await http.post("/abort_request", content=b"x")).status_code == 502


async def test_invalid_call_gets_the_error_of_the_format() -> None:
    world = World()
    async with client(world) as http:
        reply = await http.post("/abort_request", content=b"")
    assert reply.status_code == 400
    assert reply.json() == {"problem": "nothing is named"}
    assert world.aborted == []


async def test_body_over_the_limit_is_refused_unread() -> None:
    world = World()
    async with client(world) as http:
        fits = await http.post("/abort_request", content=b"x" * BODY_LIMIT)
        reply = await http.post("/abort_request", content=b"x" * (BODY_LIMIT + 1))
    assert fits.status_code == 200
    assert reply.status_code == 413
    assert len(world.aborted) == 1


async def test_each_format_has_its_own_paths() -> None:
    world = World()
    other = endpoint("/other", name="vllm", capability="other")
    async with client(world, endpoint(), other) as http:
        for path in ("/inference/v1/abort_requests", "/abort_requests"):
            assert (await http.post(path, content=b"x")).status_code == 200
    assert [name for _, name in world.aborted] == ["vllm", "vllm"]


async def test_format_that_is_not_served_has_no_abort_path() -> None:
    async with client(World()) as http:
        reply = await http.post("/abort_requests", content=b"x")
    assert reply.status_code == 404
    assert json.loads(reply.content)["message"] == "Route not found: POST /abort_requests"
