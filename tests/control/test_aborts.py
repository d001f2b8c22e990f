"""Abort calls of clients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.control.aborts import BODY_LIMIT, AbortedOn
from gateway.formats.optional import AbortTarget
from tests.control.support import World, client, endpoint

ONE, OTHER = (AbortedOn(worker=f"http://{n}:1", aborted=n, error=None) for n in (1, 2))
FAILED = AbortedOn(worker="http://3:1", aborted=0, error="refused")


@pytest.mark.parametrize(
    ("results", "status"),
    [((), 200), ((ONE, OTHER), 200), ((ONE, FAILED), 207), ((FAILED,), 502)],
    ids=["not in flight", "aborted", "one worker fails", "all workers fail"],
)
async def test_named_ids_are_aborted_in_their_format(results: Sequence[AbortedOn], status: int) -> None:
    world = World(results=results)
    async with client(world) as http:
        reply = await http.post("/abort_request", content=b"x,y")
    assert world.aborted == [(AbortTarget(ids=("x", "y")), "sglang")]
    aborted = sum(each.aborted for each in results)
    assert reply.status_code == status
    assert reply.json() == {"aborted": aborted, "results": [each.model_dump() for each in results]}


async def test_invalid_call_gets_the_error_of_the_format() -> None:
    world = World()
    async with client(world) as http:
        reply = await http.post("/abort_request", content=b"")
        assert (reply.status_code, reply.json()) == (400, {"problem": "nothing is named"})
        assert (await http.post("/abort_request", content=b"x" * (BODY_LIMIT + 1))).status_code == 413
        assert world.aborted == []
        assert (await http.post("/abort_request", content=b"x" * BODY_LIMIT)).status_code == 200


async def test_each_format_that_is_served_has_its_own_paths() -> None:
    world = World()
    other = endpoint("/other", name="vllm", capability="other")
    async with client(world, endpoint(), other) as http:
        for path in ("/inference/v1/abort_requests", "/abort_requests"):
            assert (await http.post(path, content=b"x")).status_code == 200
    assert [name for _, name in world.aborted] == ["vllm", "vllm"]
    async with client(world) as http:
        reply = await http.post("/abort_requests", content=b"x")
    assert (reply.status_code, reply.json()["message"]) == (404, "Route not found: POST /abort_requests")
