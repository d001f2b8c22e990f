"""A client's disconnect or abort frees the engine, and ends no other request there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from tests.clients.site import LONG
from tests.engines.front import Front, Json, events, running_requests
from tests.support.gateway import RawClient

#: Seconds within which an engine must end the request of a client that has disconnected.
FREED_WITHIN = 1.0

#: Tokens of a request beside another: enough for the other to end meanwhile, and few enough to wait for.
BYSTANDER = 1500

#: An id, and one of which it is a prefix: SGLang ends both on an abort of the first.
NEIGHBOURS = ("job-1", "job-10")
TWINS = ("job-1", "job-1")


@pytest.fixture(autouse=True)
async def idle(client: httpx.AsyncClient, front: Front) -> None:
    """Check that the engine has no request at the beginning of a test."""
    assert await running_requests(client, front, 0) == 0, "requests of an earlier test still run"


@asynccontextmanager
async def long_request(front: Front, name: str, *, stream: bool) -> AsyncIterator[RawClient]:
    """Send a request for more tokens than the test will wait for."""
    raw = await RawClient.connect(int(front.through.rpartition(":")[2]))
    raw.request(front.path, json.dumps(front.body(name, LONG, stream=stream)).encode())
    try:
        if stream:
            await raw.reader.readuntil(b"data: {")
        yield raw
    finally:
        raw.leave()


@asynccontextmanager
async def two_streams(
    client: httpx.AsyncClient, front: Front, names: tuple[str, str]
) -> AsyncIterator[tuple[RawClient, asyncio.Task[list[Json]]]]:
    """Start a long stream with the first name, and beside it one with the second that is read to its end."""
    async with long_request(front, names[0], stream=True) as first, asyncio.TaskGroup() as tasks:
        second = tasks.create_task(read_to_the_end(client, front, names[1]))
        assert await running_requests(client, front, 2) == 2
        yield first, second


async def read_to_the_end(client: httpx.AsyncClient, front: Front, name: str) -> list[Json]:
    reply = await front.ask(client, front.through, front.body(name, BYSTANDER, stream=True))
    assert reply.status == 200
    return events(reply.content)


def assert_untouched(front: Front, name: str, stream: list[Json]) -> None:
    """Check that the stream has all requested tokens and the id of its client."""
    assert front.ends(stream[-1]) == ["length"]
    assert front.tokens(stream) == BYSTANDER
    assert {front.public_id(event) for event in stream} == {name}


async def test_long_request_that_nobody_leaves_goes_on(client: httpx.AsyncClient, front: Front) -> None:
    """The premise of the tests below: without a disconnect the request outlasts their limit."""
    async with long_request(front, "stays", stream=False):
        assert await running_requests(client, front, 1) == 1
        assert await running_requests(client, front, 0, seconds=2 * FREED_WITHIN) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_client_that_leaves_frees_the_engine(
    client: httpx.AsyncClient, front: Front, reset: bool, stream: bool
) -> None:
    """The engine is free within a second, also if it has sent nothing that could have failed."""
    async with long_request(front, f"leaves-{reset}", stream=stream) as request:
        assert await running_requests(client, front, 1) == 1
        request.leave(reset=reset)
        assert await running_requests(client, front, 0, FREED_WITHIN) == 0


async def test_many_clients_that_leave_at_once_free_the_engine(
    client: httpx.AsyncClient, front: Front
) -> None:
    """Twelve clients, each with its own id and half of them streaming, leave nothing behind."""
    async with AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(long_request(front, f"crowd-{number:02}", stream=number % 2 == 0))
            for number in range(12)
        ]
        assert await running_requests(client, front, len(crowd)) == len(crowd)
        for request in crowd:
            request.leave()
        assert await running_requests(client, front, 0, FREED_WITHIN) == 0


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_abort_by_id_ends_the_request(client: httpx.AsyncClient, front: Front, stream: bool) -> None:
    """The client's own abort call reaches the engine, and the request ends as aborted."""
    body = front.body("to-abort", LONG, stream=stream)
    request = asyncio.ensure_future(front.ask(client, front.through, body))
    assert await running_requests(client, front, 1) == 1
    url, abort = front.abort("to-abort")
    assert (await client.post(url, json=abort)).status_code == 200
    reply = await request
    last = events(reply.content)[-1] if stream else reply.json()
    assert reply.status == 200
    assert front.ends(last) == ["abort"]
    assert await running_requests(client, front, 0, FREED_WITHIN) == 0


async def test_abort_of_an_unknown_id_ends_nothing(client: httpx.AsyncClient, front: Front) -> None:
    """An unknown id is not an error, and not a wildcard."""
    task = asyncio.ensure_future(read_to_the_end(client, front, "job-1"))
    assert await running_requests(client, front, 1) == 1
    for name in ("job", "job-1-and-more", "other"):
        url, abort = front.abort(name)
        assert (await client.post(url, json=abort)).status_code == 200
    assert_untouched(front, "job-1", await task)


@pytest.mark.parametrize("names", [TWINS, NEIGHBOURS], ids=["same id", "prefix"])
async def test_leaving_one_stream_spares_its_neighbour(
    client: httpx.AsyncClient, front: Front, names: tuple[str, str]
) -> None:
    """Of two streams with one id, or with an id and its prefix, one ends and the other is complete."""
    async with two_streams(client, front, names) as (first, second):
        first.leave()
        assert await running_requests(client, front, 1, FREED_WITHIN) == 1
        assert not second.done()
    assert_untouched(front, names[1], second.result())


async def test_aborting_one_id_spares_the_id_it_begins(client: httpx.AsyncClient, front: Front) -> None:
    """An abort of ``job-1`` does not abort ``job-10``."""
    async with two_streams(client, front, NEIGHBOURS) as (_, second):
        url, abort = front.abort(NEIGHBOURS[0])
        assert (await client.post(url, json=abort)).status_code == 200
        assert await running_requests(client, front, 1, FREED_WITHIN) == 1
        assert not second.done()
    assert_untouched(front, NEIGHBOURS[1], second.result())


async def test_id_can_be_used_again_at_once(client: httpx.AsyncClient, front: Front) -> None:
    """A client may reuse an id at once: the abort of the old request does not end the new one."""
    async with long_request(front, "again", stream=True) as request:
        request.leave()
        assert_untouched(front, "again", await read_to_the_end(client, front, "again"))


async def test_id_can_be_used_again_after_a_stream(client: httpx.AsyncClient, front: Front) -> None:
    """Two seconds after the end of a stream SGLang aborts its id; a later request with the id must not be
    affected.
    """
    short = await front.ask(client, front.through, front.body("reused", 4, stream=True))
    assert short.status == 200
    async with long_request(front, "reused", stream=False):
        assert await running_requests(client, front, 1) == 1
        assert await running_requests(client, front, 0, seconds=3) == 1


async def test_connection_of_a_failed_stream_is_not_used_again(
    client: httpx.AsyncClient, front: Front
) -> None:
    """Two seconds after a refused stream SGLang closes its connection, whatever request uses it then."""
    refused = await front.ask(client, front.through, {"sampling_params": {}, "stream": True})
    assert refused.status == 400 or "error" in events(refused.content)[-1]
    async with long_request(front, "after-a-refusal", stream=False):
        assert await running_requests(client, front, 1) == 1
        assert await running_requests(client, front, 0, seconds=3) == 1
