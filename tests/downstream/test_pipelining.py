"""Requests that a client sends ahead of its replies, at one connection without a socket."""

from __future__ import annotations

from typing import Any, cast

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.downstream.connection import PIPELINE_LIMIT, PIPELINED_BODY_LIMIT, ClientConnection
from gateway.downstream.limits import ClientLimits
from gateway.downstream.request import ServerRequest
from gateway.downstream.start_pacing import StartPacer
from gateway.loop.stepper import CoroutineStepper
from gateway.loop.write_batch import WriteBatch
from gateway.proxy.lifecycle import Lifecycle
from tests.fuzz.wire import Wire


class Application:
    """Starts an exchange for each request and leaves the reply to the test."""

    def __init__(self) -> None:
        self.start_pacer, self.write_batch = StartPacer(), WriteBatch()
        self.limits, self.lifecycle = ClientLimits(), Lifecycle()
        self.started: list[ServerRequest] = []

    def limit_reached(self, limit: str) -> None:
        raise AssertionError(limit)

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
