"""A client that leaves or aborts frees the engine, and ends nothing else there."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from tests.engines.front import LONG, Front, Json, events

#: How long an engine may go on for a client that has left, in seconds.
FREED_WITHIN = 1.0

#: Tokens of a request beside another: enough for the other to be ended meanwhile, and few enough to wait for.
BYSTANDER = 600

#: One id, and one whose beginning it is: SGLang ends both when told to end the first.
NEIGHBOURS = ("job-1", "job-10")
TWINS = ("job-1", "job-1")


@pytest.fixture(autouse=True)
async def idle(client: httpx.AsyncClient, front: Front) -> None:
    """Every test begins with an engine that holds nothing."""
    assert await holds(client, front, 0), "the engine is still busy with an earlier test's requests"


class Visitor:
    """A client on a bare socket, so that the way it leaves is its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def sends(cls, front: Front, body: Json) -> Visitor:
        """Connect to the gateway and send ``body``."""
        where = urlsplit(front.through)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        content = json.dumps(body).encode()
        head = f"POST {front.path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return cls(reader, writer)

    async def sees_an_event(self) -> None:
        await self._reader.readuntil(b"data: {")

    async def leaves(self, how: str) -> None:
        """By an orderly end of the connection (fin) or a reset (rst)."""
        if how == "rst":
            linger = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.close()
        await self._writer.wait_closed()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Ask again and again; False when ``seconds`` went by without a yes."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while not await condition():
        if clock() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


async def holds(client: httpx.AsyncClient, front: Front, count: int, seconds: float = 10) -> bool:
    """Whether the engine comes to hold exactly ``count`` requests within ``seconds``."""

    async def so() -> bool:
        return await front.running(client) == count

    return await until(so, seconds)


@asynccontextmanager
async def two_streams(
    client: httpx.AsyncClient, front: Front, names: tuple[str, str]
) -> AsyncIterator[tuple[Visitor, asyncio.Task[list[Json]]]]:
    """A long stream under the first name, and beside it one under the second that is read to its end."""
    first = await Visitor.sends(front, front.body(names[0], LONG, stream=True))
    await first.sees_an_event()
    async with asyncio.TaskGroup() as tasks:
        second = tasks.create_task(read_to_the_end(client, front, names[1]))
        assert await holds(client, front, 2)
        yield first, second
    await first.leaves("fin")


async def read_to_the_end(client: httpx.AsyncClient, front: Front, name: str) -> list[Json]:
    reply = await front.ask(client, front.through, front.body(name, BYSTANDER, stream=True))
    assert reply.status == 200
    return events(reply.content)


def assert_untouched(front: Front, name: str, stream: list[Json]) -> None:
    """The stream came to the end its client asked for, under the name its client gave."""
    assert front.ends(stream[-1]) == ["length"]
    assert front.tokens(stream) == BYSTANDER
    assert {front.public_id(event) for event in stream} == {name}


async def test_long_request_that_nobody_leaves_goes_on(client: httpx.AsyncClient, front: Front) -> None:
    """Without this the tests below would prove nothing: left alone, the request outlasts their limit."""
    visitor = await Visitor.sends(front, front.body("stays", LONG, stream=False))
    assert await holds(client, front, 1)
    assert not await holds(client, front, 0, seconds=2 * FREED_WITHIN)
    await visitor.leaves("fin")


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_unary_client_that_leaves_frees_the_engine(
    client: httpx.AsyncClient, front: Front, how: str
) -> None:
    """The engine is free within a second, though it has sent nothing and so cannot have noticed."""
    visitor = await Visitor.sends(front, front.body("leaves", LONG, stream=False))
    assert await holds(client, front, 1)
    await visitor.leaves(how)
    assert await holds(client, front, 0, FREED_WITHIN)


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_stream_client_that_leaves_frees_the_engine(
    client: httpx.AsyncClient, front: Front, how: str
) -> None:
    """The engine is free within a second of a client's leaving in the middle of its stream."""
    visitor = await Visitor.sends(front, front.body("leaves", LONG, stream=True))
    await visitor.sees_an_event()
    assert await holds(client, front, 1)
    await visitor.leaves(how)
    assert await holds(client, front, 0, FREED_WITHIN)


async def test_many_clients_that_leave_at_once_free_the_engine(
    client: httpx.AsyncClient, front: Front
) -> None:
    """Twelve at a time, each under its own id and half of them streaming, leave nothing behind."""
    bodies = [front.body(f"crowd-{number}", LONG, stream=number % 2 == 0) for number in range(12)]
    visitors = [await Visitor.sends(front, body) for body in bodies]
    assert await holds(client, front, len(visitors))
    await asyncio.gather(*(visitor.leaves("fin") for visitor in visitors))
    assert await holds(client, front, 0, FREED_WITHIN)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_abort_by_id_ends_the_request(client: httpx.AsyncClient, front: Front, stream: bool) -> None:
    """The client's own abort call reaches the engine, and the request ends as aborted."""
    body = front.body("to-abort", LONG, stream=stream)
    request = asyncio.ensure_future(front.ask(client, front.through, body))
    assert await holds(client, front, 1)
    url, abort = front.abort("to-abort")
    assert (await client.post(url, json=abort)).status_code == 200
    reply = await request
    last = events(reply.content)[-1] if stream else reply.json()
    assert reply.status == 200
    assert front.ends(last) == ["abort"]
    assert await holds(client, front, 0, FREED_WITHIN)


async def test_abort_of_an_unknown_id_ends_nothing(client: httpx.AsyncClient, front: Front) -> None:
    """An id that nobody runs under is no error, and no wildcard."""
    task = asyncio.ensure_future(read_to_the_end(client, front, "job-1"))
    assert await holds(client, front, 1)
    for name in ("job", "job-1-and-more", "other"):
        url, abort = front.abort(name)
        assert (await client.post(url, json=abort)).status_code == 200
    assert_untouched(front, "job-1", await task)


@pytest.mark.parametrize("names", [TWINS, NEIGHBOURS], ids=["same id", "prefix"])
async def test_leaving_one_stream_spares_its_neighbour(
    client: httpx.AsyncClient, front: Front, names: tuple[str, str]
) -> None:
    """Of two streams under one id, or under an id and its beginning, one goes and the other is complete."""
    async with two_streams(client, front, names) as (first, second):
        await first.leaves("fin")
        assert await holds(client, front, 1, FREED_WITHIN)
        assert not second.done()
    assert_untouched(front, names[1], second.result())


async def test_aborting_one_id_spares_the_id_it_begins(client: httpx.AsyncClient, front: Front) -> None:
    """An abort of ``job-1`` is not one of ``job-10``."""
    async with two_streams(client, front, NEIGHBOURS) as (_, second):
        url, abort = front.abort(NEIGHBOURS[0])
        assert (await client.post(url, json=abort)).status_code == 200
        assert await holds(client, front, 1, FREED_WITHIN)
        assert not second.done()
    assert_untouched(front, NEIGHBOURS[1], second.result())


async def test_id_can_be_used_again_at_once(client: httpx.AsyncClient, front: Front) -> None:
    """A client may come back under the id it has just left under: the old end is not the new one's."""
    visitor = await Visitor.sends(front, front.body("again", LONG, stream=True))
    await visitor.sees_an_event()
    await visitor.leaves("fin")
    assert_untouched(front, "again", await read_to_the_end(client, front, "again"))
