"""Requests that a client sends ahead of its replies, at one connection without a socket."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.downstream.connection import PIPELINE_LIMIT, PIPELINED_BODY_LIMIT, ClientConnection
from gateway.downstream.limits import ClientLimits
from gateway.downstream.request import ServerRequest
from gateway.downstream.start_pacing import PER_ITERATION, StartPacer
from gateway.loop.stepper import CoroutineStepper
from gateway.loop.unreachable_peers import UnreachablePeers
from gateway.loop.write_batch import WriteBatch
from gateway.proxy.lifecycle import Lifecycle
from tests.downstream.raw import CHUNKED
from tests.fuzz.wire import Wire


class Application:
    """Starts an exchange for each request and leaves the reply to the test."""

    def __init__(self) -> None:
        self.start_pacer, self.write_batch = StartPacer(), WriteBatch()
        self.unreachable_peers = UnreachablePeers()
        self.limits, self.lifecycle = ClientLimits(), Lifecycle()
        self.started: list[ServerRequest] = []
        self.limits_reached: list[str] = []

    def limit_reached(self, limit: str) -> None:
        self.limits_reached.append(limit)

    def direct_route(self, path: bytes, method: bytes) -> Any:
        return self.started.append

    def reply(self) -> bytes:
        """Answer the oldest request; return its target."""
        request = self.started.pop(0)
        CoroutineStepper().start(request.reply(200, [], request.target))
        return request.target


@pytest.fixture
async def app() -> Application:
    return Application()


@pytest.fixture
async def wire() -> Wire:
    return Wire(plain=True)


@pytest.fixture
async def connection(app: Application, wire: Wire) -> ClientConnection:
    connection = ClientConnection(Config(cast(Any, app), log_config=None), ServerState(), {})
    connection.connection_made(wire)
    return connection


def post(target: str, body: int = 0) -> bytes:
    return f"POST {target} HTTP/1.1\r\nhost: g\r\ncontent-length: {body}\r\n\r\n".encode() + bytes(body)


async def test_replies_keep_the_order_of_requests_when_the_client_stops_reading_in_between(
    app: Application, connection: ClientConnection
) -> None:
    """A request that arrives meanwhile does not overtake one that waits for the client to read."""
    connection.data_received(post("/a") + post("/b"))
    connection.pause_writing()
    assert app.reply() == b"/a"
    connection.data_received(post("/c"))
    assert not app.started
    connection.resume_writing()
    assert [app.reply(), app.reply()] == [b"/b", b"/c"]


@pytest.mark.parametrize("ahead", ["requests", "bytes"])
async def test_no_more_is_read_while_too_much_is_sent_ahead(
    app: Application, wire: Wire, connection: ClientConnection, ahead: str
) -> None:
    connection.data_received(post("/a"))
    if ahead == "requests":
        connection.data_received(post("/b") * (PIPELINE_LIMIT - 1))
        assert not wire.paused
        connection.data_received(post("/b"))
    else:
        connection.data_received(post("/b", PIPELINED_BODY_LIMIT))
        assert not wire.paused
        connection.data_received(post("/b", PIPELINED_BODY_LIMIT + 1))
    assert wire.paused
    app.reply()
    assert not wire.paused and len(app.started) == 1


INVALID = (CHUNKED + b"2;\n{}", b"POST / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", CHUNKED + b"x" * 9)


@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize(
    "invalid",
    [
        *([data] for data in INVALID),
        *([data[:-1], data[-1:]] for data in INVALID),
        [b"GET /live HTTP/1.1\r\nx: ", b"y" * 300_000],
    ],
)
async def test_requests_before_an_invalid_one_are_answered_and_it_is_not(
    app: Application, wire: Wire, connection: ClientConnection, invalid: list[bytes], before: int
) -> None:
    """Its error would look like the reply to one of them."""
    first, *later = invalid
    for piece in (post("/a") * before + first, *later):
        connection.data_received(piece)
    for _ in range(before):
        assert not wire.closed
        assert app.reply() == b"/a"
    assert wire.closed and not app.started
    assert wire.written.count(b"HTTP/1.1 200 ") == wire.written.count(b"HTTP/1.1 ") == before
    assert app.limits_reached == (["request_head_size"] if len(invalid[-1]) > 1000 else [])


async def test_iteration_of_the_loop_starts_no_more_than_its_share_and_all_in_order() -> None:
    pacer = StartPacer()
    started: list[int] = []
    for number in range(1000):
        pacer.start(started.append, number)
    assert len(started) == PER_ITERATION
    while (before := len(started)) < 1000:
        await asyncio.sleep(0)
        assert len(started) - before <= PER_ITERATION
    assert started == list(range(1000))


@pytest.mark.virtual_time
async def test_client_that_goes_on_sending_may_read_its_last_reply_for_five_seconds_more_up_to_thirty(
    connection: ClientConnection, wire: Wire
) -> None:
    """Closing while bytes arrive resets the connection, and the client of a slow network loses its 413."""
    connection.data_received(b"POST /a HTTP/9.1\r\n\r\n")
    assert wire.written.startswith(b"HTTP/1.1 400 ")
    for _ in range(6):
        await asyncio.sleep(4.5)
        connection.data_received(b"x")
        assert not wire.closed
    await asyncio.sleep(3.5)
    assert wire.closed


@pytest.mark.virtual_time
async def test_silent_client_may_read_its_last_reply_for_five_seconds(
    connection: ClientConnection, wire: Wire
) -> None:
    connection.data_received(b"POST /a HTTP/9.1\r\n\r\n")
    await asyncio.sleep(4.5)
    assert not wire.closed
    await asyncio.sleep(1)
    assert wire.closed
