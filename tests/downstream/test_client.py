"""The client's side: bodies within their limit, and leaving that is told once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from gateway.downstream import asgi_client as downstream
from gateway.downstream.asgi import Message
from gateway.downstream.asgi_client import AsgiClient, DisconnectWatch, read_body
from gateway.downstream.lifespan import lifespan
from gateway.errors import Cancelled, GatewayError, RequestTooLarge
from gateway.formats.contract import Headers
from tests.support.gateway import until

LIMIT = 10


class Client:
    """What a server hands on of a client: its messages in turn, then silence."""

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

    def says(self, message: Message) -> None:
        self.messages.append(message)
        self._more.set()


def part(body: bytes, more_body: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more_body}


def start(status: int, headers: Sequence[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def more(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def last(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": False}


LEFT: Message = {"type": "http.disconnect"}


def chunks(total: int, size: int) -> Iterator[Message]:
    for at in range(0, total, size):
        yield part(b"x" * min(size, total - at), at + size < total)


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
@pytest.mark.parametrize("announced", [True, False], ids=["length", "chunked"])
@pytest.mark.parametrize("piece", [1, 3, 100])
async def test_body_within_the_limit(size: int, announced: bool, piece: int) -> None:
    """A body of up to exactly the limit arrives whole, however it is cut."""
    headers = [(b"content-length", b"%d" % size)] if announced else []
    client = Client(*chunks(size, piece) if size else [part(b"", False)])
    assert await read_body(client.receive, headers, LIMIT) == b"x" * size


@pytest.mark.parametrize("piece", [1, 3, 100])
async def test_body_over_the_limit(piece: int) -> None:
    """One byte more is refused, and no more is read than shows it."""
    client = Client(*chunks(1000, piece))
    with pytest.raises(RequestTooLarge, match="10 bytes"):
        await read_body(client.receive, [], LIMIT)
    assert client.asked == -(-(LIMIT + 1) // piece)


@pytest.mark.parametrize("length", [b"11", b"99999999", b"0" * 50 + b"11", b"9" * 30, b"9" * 9999])
async def test_announced_body_over_the_limit(length: bytes) -> None:
    """A length that announces too much is refused before a byte is read."""
    client = Client(part(b"x", False))
    with pytest.raises(RequestTooLarge):
        await read_body(client.receive, [(b"content-length", length)], LIMIT)
    assert client.asked == 0


@pytest.mark.parametrize("length", [b"", b"abc", b"-5", b"0x10", b"\xff\xff", b"nan"])
async def test_length_that_is_no_number(length: bytes) -> None:
    """A length that is none, which no server lets through, does no harm: the body itself counts."""
    headers = [(b"content-length", length)]
    assert await read_body(Client(part(b"x" * LIMIT, False)).receive, headers, LIMIT) == b"x" * LIMIT
    with pytest.raises(RequestTooLarge):
        await read_body(Client(part(b"x" * 11, False)).receive, headers, LIMIT)


async def test_body_without_its_keys() -> None:
    """A message may leave out what has a default."""
    assert await read_body(Client({"type": "http.request"}).receive, [], LIMIT) == b""


@pytest.mark.parametrize("before", [[], [part(b"x")], [part(b"x"), part(b"y")]])
async def test_client_that_leaves_before_its_body_is_whole(before: Sequence[Message]) -> None:
    """Half a request is no request."""
    client = Client(*before, LEFT)
    with pytest.raises(Cancelled):
        await read_body(client.receive, [], LIMIT)


# -- watch


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downstream, "WATCH_AFTER", 0.001)


async def test_leaving_is_told_once() -> None:
    """The client's leaving is told, once."""
    client = Client()
    told: list[GatewayError] = []
    watch = DisconnectWatch(client.receive, told.append)
    await until(lambda: client.asked == 1)
    assert told == []
    client.says(part(b""))
    client.says(LEFT)
    client.says(LEFT)
    await until(lambda: bool(told))
    await asyncio.sleep(0.005)
    assert [type(why) for why in told] == [Cancelled]
    watch.stop()


async def test_leaving_before_the_watch_begins() -> None:
    """Who left in the first moments is missed no more than anybody."""
    told: list[GatewayError] = []
    watch = DisconnectWatch(Client(LEFT).receive, told.append)
    await until(lambda: bool(told))
    watch.stop()


async def test_short_exchange_is_not_watched() -> None:
    """A watch that is stopped soon asks the server for nothing."""
    client = Client(LEFT)
    DisconnectWatch(client.receive, lambda why: pytest.fail("told")).stop()
    await asyncio.sleep(0.005)
    assert client.asked == 0


async def test_leaving_after_the_end() -> None:
    """After ``stop`` nothing is told, not even what has just been received."""
    client = Client()
    told: list[GatewayError] = []
    watch = DisconnectWatch(client.receive, told.append)
    await until(lambda: client.asked == 1)
    client.says(LEFT)
    watch.stop()
    watch.stop()
    await asyncio.sleep(0.005)
    assert told == []


async def test_client_of_any_server() -> None:
    """On any ASGI server a client's body is read, its leaving watched, and its reply sent in order."""
    peer = Client(part(b"{}", False))
    told: list[GatewayError] = []
    out: list[Message] = []

    async def send(message: Message) -> None:
        out.append(message)

    client = AsgiClient({"headers": [(b"x-a", b"1")]}, peer.receive, send)
    client.ignore_disconnect()
    assert client.headers == [(b"x-a", b"1")]
    assert await client.read_body(LIMIT) == b"{}"
    client.on_disconnect(told.append)
    client.start(200, [])
    assert out == []
    await client.send(b"a")
    await client.finish(b"b")
    assert out == [start(200, []), more(b"a"), last(b"b")]
    peer.says(LEFT)
    await until(lambda: bool(told))
    client.ignore_disconnect()


# -- messages


async def sent(status: int, headers: Headers, body: bytes, *, close: bool = False) -> list[Message]:
    out: list[Message] = []

    async def send(message: Message) -> None:
        out.append(message)

    await AsgiClient({"headers": []}, Client().receive, send).reply(status, headers, body, close=close)
    return out


async def test_whole_reply_has_its_true_length() -> None:
    assert await sent(503, [(b"retry-after", b"1")], b"{}") == [
        start(503, [(b"retry-after", b"1"), (b"content-length", b"2")]),
        last(b"{}"),
    ]


@pytest.mark.parametrize("status", [204, 304])
async def test_whole_reply_without_a_body_has_no_length(status: int) -> None:
    assert await sent(status, [], b"") == [start(status, []), last(b"")]


async def test_whole_reply_may_be_the_last_of_its_connection() -> None:
    [head, _] = await sent(503, [], b"", close=True)
    assert (b"connection", b"close") in head["headers"]


async def test_lifespan_starts_and_stops() -> None:
    """What runs in the background starts before start-up is confirmed and stops before shutdown is."""
    seen: list[str] = []

    class Background:
        async def start(self) -> None:
            seen.append("started")

        async def stop(self) -> None:
            seen.append("stopped")

    async def send(message: Message) -> None:
        seen.append(message["type"])

    client = Client({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    await lifespan(client.receive, send, Background())
    assert seen == ["started", "lifespan.startup.complete", "stopped", "lifespan.shutdown.complete"]
