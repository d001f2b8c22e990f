"""The client of an exchange on an ASGI server: body, disconnect and reply; and the lifespan protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from gateway.downstream.asgi import Message, Send
from gateway.downstream.asgi_client import WATCH_AFTER, AsgiClient, DisconnectWatch, read_body
from gateway.downstream.lifespan import lifespan
from gateway.errors import Cancelled, GatewayError, RequestTooLarge
from gateway.formats.contract import Headers

pytestmark = pytest.mark.virtual_time

LIMIT = 10


class Server:
    """The server of an ASGI application: it delivers messages one after another, then waits."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.asked = 0
        self._more = asyncio.Event()

    async def receive(self) -> Message:
        self.asked += 1
        while not self.messages:
            self._more.clear()
            await self._more.wait()
        return self.messages.pop(0)

    def deliver(self, message: Message) -> None:
        self.messages.append(message)
        self._more.set()


def part(body: bytes, more_body: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more_body}


def start(status: int, headers: Sequence[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def more(body: bytes, more_body: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more_body}


DISCONNECT: Message = {"type": "http.disconnect"}


async def read(server: Server, *headers: tuple[bytes, bytes]) -> bytes:
    return await read_body(server.receive, list(headers), LIMIT)


def sink(out: list[Message]) -> Send:
    async def send(message: Message) -> None:
        out.append(message)

    return send


def chunks(total: int, size: int) -> Iterator[Message]:
    for at in range(0, total, size):
        yield part(b"x" * min(size, total - at), at + size < total)


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
@pytest.mark.parametrize("sized", [True, False], ids=["length", "chunked"])
@pytest.mark.parametrize("piece", [1, 3, 100])
async def test_body_up_to_the_limit_is_returned_complete(size: int, sized: bool, piece: int) -> None:
    server = Server(*chunks(size, piece) if size else [{"type": "http.request"}])
    assert await read(server, *([(b"content-length", b"%d" % size)] if sized else [])) == b"x" * size


@pytest.mark.parametrize("piece", [1, 3, 100])
async def test_body_over_the_limit_is_refused_as_soon_as_that_is_known(piece: int) -> None:
    server = Server(*chunks(1000, piece))
    with pytest.raises(RequestTooLarge, match="10 bytes"):
        await read(server)
    assert server.asked == -(-(LIMIT + 1) // piece)


@pytest.mark.parametrize("length", [b"11", b"99999999", b"0" * 50 + b"11", b"9" * 30, b"9" * 9999])
async def test_content_length_over_the_limit_is_refused_before_anything_is_read(length: bytes) -> None:
    server = Server(part(b"x", False))
    with pytest.raises(RequestTooLarge):
        await read(server, (b"content-length", length))
    assert server.asked == 0


@pytest.mark.parametrize("length", [b"", b"abc", b"-5", b"0x10", b"\xff\xff", b"nan"])
async def test_invalid_content_length_is_ignored(length: bytes) -> None:
    """No server passes one on; the size of the body counts."""
    header = (b"content-length", length)
    assert await read(Server(part(b"x" * LIMIT, False)), header) == b"x" * LIMIT
    with pytest.raises(RequestTooLarge):
        await read(Server(part(b"x" * 11, False)), header)


@pytest.mark.parametrize("before", [[], [part(b"x")], [part(b"x"), part(b"y")]])
async def test_disconnect_before_the_end_of_the_body_is_cancelled(before: Sequence[Message]) -> None:
    with pytest.raises(Cancelled):
        await read(Server(*before, DISCONNECT))


@pytest.fixture
def reasons() -> list[GatewayError]:
    return []


async def test_disconnect_is_reported_once(reasons: list[GatewayError]) -> None:
    server = Server()
    watch = DisconnectWatch(server.receive, reasons.append)
    await asyncio.sleep(1)
    assert (server.asked, reasons) == (1, [])
    for message in (part(b""), DISCONNECT, DISCONNECT):
        server.deliver(message)
    await asyncio.sleep(1)
    assert [type(reason) for reason in reasons] == [Cancelled]
    watch.stop()


@pytest.mark.parametrize("short", [True, False])
async def test_disconnect_during_a_short_exchange_is_not_waited_for(
    short: bool, reasons: list[GatewayError]
) -> None:
    """The first WATCH_AFTER seconds need no task; a disconnect within them is reported after them."""
    server = Server(DISCONNECT)
    watch = DisconnectWatch(server.receive, reasons.append)
    await asyncio.sleep(WATCH_AFTER * (0.9 if short else 1.1))
    watch.stop()
    await asyncio.sleep(1)
    assert (server.asked, len(reasons)) == ((0, 0) if short else (1, 1))


async def test_disconnect_after_the_watch_is_not_reported(reasons: list[GatewayError]) -> None:
    server = Server()
    watch = DisconnectWatch(server.receive, reasons.append)
    await asyncio.sleep(1)
    server.deliver(DISCONNECT)
    for _ in range(2):
        watch.stop()
    await asyncio.sleep(1)
    assert (server.asked, reasons) == (1, [])


async def test_client_reads_watches_and_replies_in_order(reasons: list[GatewayError]) -> None:
    server, out = Server(part(b"{}", False)), list[Message]()
    client = AsgiClient({"headers": [(b"x-a", b"1")]}, server.receive, sink(out))
    client.ignore_disconnect()
    assert client.headers == [(b"x-a", b"1")]
    assert await client.read_body(LIMIT) == b"{}"
    client.on_disconnect(reasons.append)
    client.start(200, [])
    assert out == []
    await client.send(b"a")
    await client.finish(b"b")
    assert out == [start(200, []), more(b"a"), more(b"b", False)]
    server.deliver(DISCONNECT)
    await asyncio.sleep(1)
    assert len(reasons) == 1
    client.ignore_disconnect()


@pytest.mark.parametrize(
    ("status", "body", "close", "added"),
    [
        (503, b"{}", False, [(b"content-length", b"2")]),
        (503, b"", True, [(b"content-length", b"0"), (b"connection", b"close")]),
        (204, b"", False, []),
        (304, b"", False, []),
    ],
)
async def test_complete_reply_has_its_length_if_it_may_have_a_body(
    status: int, body: bytes, close: bool, added: Headers
) -> None:
    out: list[Message] = []
    client = AsgiClient({"headers": []}, Server().receive, sink(out))
    await client.reply(status, [(b"retry-after", b"1")], body, close=close)
    assert out == [start(status, [(b"retry-after", b"1"), *added]), more(body, False)]


async def test_lifespan_starts_and_stops_the_services() -> None:
    out: list[Message] = []

    class Background:
        async def start(self) -> None:
            out.append({"type": "started"})

        async def stop(self) -> None:
            out.append({"type": "stopped"})

    server = Server({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    await lifespan(server.receive, sink(out), Background())
    seen = [message["type"] for message in out]
    assert seen == ["started", "lifespan.startup.complete", "stopped", "lifespan.shutdown.complete"]
