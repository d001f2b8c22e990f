"""The connection to a worker: whatever a peer sends, and however it ends, the reply is told honestly."""

from __future__ import annotations

import asyncio
import itertools
import random
import ssl
from contextlib import suppress

import pytest
import trustme

from gateway.errors import NotReceived, UpstreamIncomplete, UpstreamMalformed
from gateway.limits import DEFAULT_HEAD
from gateway.loop.stepper import CoroutineStepper
from gateway.upstream import receipt_proof
from gateway.upstream.connection import HIGH_WATER, Connection
from gateway.upstream.read_buffer import MAX_FULL_READS, READ_SIZE, USUAL_READ
from gateway.upstream.sliced_writer import SLICE, _slices
from tests.support.gateway import until
from tests.upstream.peer import (
    BODY,
    REQUEST,
    Listener,
    Peer,
    body,
    connection_made,
    deliver,
    listening,
    served,
)

OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"content-length: 5\r\n\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"

#: Whole replies, the body a caller must see, and whether the connection can carry another request.
WHOLE = {
    "length": (SIZED + b"hello", b"hello", True),
    "empty": (OK + b"content-length: 0\r\n\r\n", b"", True),
    "chunks": (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello", True),
    "no chunk": (CHUNKED + b"0\r\n\r\n", b"", True),
    "chunk extensions": (CHUNKED + b'5;a=b;c="d e"\r\nhello\r\n0;last\r\n\r\n', b"hello", True),
    "upper-case size": (CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789", True),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nx-sum: 1\r\nx-end: 2\r\n\r\n", b"hello", True),
    "space after the coding": (
        OK + b"transfer-encoding: chunked  \r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"hello",
        True,
    ),
    "mixed-case coding": (OK + b"Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello", True),
    "continue first": (b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED + b"hello", b"hello", True),
    "interim replies": (
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + SIZED + b"hello",
        b"hello",
        True,
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", b"", True),
    "no reason": (b"HTTP/1.1 200 \r\ncontent-length: 5\r\n\r\nhello", b"hello", True),
    "close announced": (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", b"hello", False),
    "old version": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello", False),
    "old version kept": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nhello",
        b"hello",
        True,
    ),
    "upgrade offered": (
        OK + b"upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 5\r\n\r\nhello",
        b"hello",
        True,
    ),
}

#: Replies that no HTTP/1.1 server may send.
NONSENSE = {
    "not http": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "status 099": b"HTTP/1.1 099 Early\r\ncontent-length: 0\r\n\r\n",
    "status 600": b"HTTP/1.1 600 Late\r\ncontent-length: 0\r\n\r\n",
    "status 999": b"HTTP/1.1 999 Later\r\ncontent-length: 0\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "switched protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc",
    "switched in silence": b"HTTP/1.1 101 Switching\r\n\r\n",
    "both lengths": OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "two lengths": OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "negative length": OK + b"content-length: -5\r\n\r\nhello",
    "no number": OK + b"content-length: five\r\n\r\nhello",
    "vast length": OK + b"content-length: 99999999999999999999\r\n\r\nhello",
    "other coding": OK + b"transfer-encoding: gzip\r\n\r\nhello",
    "coding and a tab": OK + b"transfer-encoding: chunked\t\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "coding on top": OK + b"transfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "coding after": OK
    + b"transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "coding twice": OK
    + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "coding on top, a reply behind it": OK
    + b"transfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    + OK
    + b"content-length: 2\r\n\r\nok",
    "switched in silence, a reply behind it": b"HTTP/1.1 101 S\r\n\r\n" + OK + b"content-length: 0\r\n\r\n",
    "status 600, a reply behind it": b"HTTP/1.1 600 Late\r\ncontent-length: 0\r\n\r\n"
    + OK
    + b"content-length: 0\r\n\r\n",
    "space before colon": OK + b"content-length : 5\r\n\r\nhello",
    "nul in a header": OK + b"x: a\x00b\r\ncontent-length: 0\r\n\r\n",
}

#: Bodies that turn into nonsense after a sound head, with the bytes a caller may still see.
NONSENSE_LATER = {
    "chunk size": (CHUNKED + b"5\r\nhello\r\nxyz\r\n", b"hello"),
    "negative chunk": (CHUNKED + b"5\r\nhello\r\n-1\r\n", b"hello"),
    "chunk too long": (CHUNKED + b"5\r\nhello!!\r\n0\r\n\r\n", b"hello"),
    "vast chunk": (CHUNKED + b"5\r\nhello\r\n" + b"f" * 20 + b"\r\n", b"hello"),
}


async def failure(connection: Connection) -> tuple[bytes, Exception]:
    """What of the body came, and how the reply failed."""
    seen = b""
    try:
        await connection.head()
        while part := await connection.read():
            seen += part
    except (UpstreamIncomplete, UpstreamMalformed) as error:
        return seen, error
    raise AssertionError(f"a clean end after {seen!r}")


@pytest.mark.parametrize("name", WHOLE)
async def test_whole_reply_at_once(listener: Listener, name: str) -> None:
    """Every legal framing gives its body and its end, and tells whether the connection lives on."""
    reply, expected, reusable = WHOLE[name]
    connection, peer = await listener.asked()
    await peer.send(reply)
    head = await connection.head()
    assert await body(connection) == expected
    assert await connection.read() == b""
    assert head.status == int(reply.rsplit(b"HTTP/1.", 1)[1][2:5])
    assert connection.recycle() is reusable
    assert connection.closed is not reusable


@pytest.mark.parametrize("name", WHOLE)
async def test_whole_reply_byte_by_byte(listener: Listener, name: str) -> None:
    """The same holds when every byte comes in a read of its own."""
    reply, expected, reusable = WHOLE[name]
    connection, peer = await listener.asked()
    for at in range(len(reply)):
        deliver(connection, reply[at : at + 1])
    await connection.head()
    assert await body(connection) == expected
    assert connection.recycle() is reusable


@pytest.mark.parametrize("seed", range(5))
async def test_whole_replies_in_random_cuts(listener: Listener, seed: int) -> None:
    """One connection carries every kind of reusable reply in turn, however they are cut."""
    cuts = random.Random(seed)
    connection, peer = await listener.pair()
    for reply, expected, reusable in WHOLE.values():
        if not reusable:
            continue
        connection.send(REQUEST, BODY)
        await peer.request()
        at = sorted({0, len(reply), *(cuts.randrange(len(reply)) for _ in range(4))})
        pieces = [reply[start:end] for start, end in itertools.pairwise(at)]
        for piece in pieces:
            await peer.send(piece)
            await asyncio.sleep(0)
        await connection.head()
        assert await body(connection) == expected
        assert connection.recycle()


async def test_head_is_kept_line_for_line(listener: Listener) -> None:
    """Headers come in order, duplicates kept, names in lower case, values as they were, trailers left out."""
    connection, peer = await listener.asked()
    await peer.send(
        b"HTTP/1.1 103 Hints\r\nlink: early\r\n\r\n"
        b"HTTP/1.1 201 Made\r\nX-B: 2\r\nx-a: \xff caf\xc3\xa9 \r\nX-B: 1\r\nx-empty:\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nx-late: 1\r\n\r\n"
    )
    head = await connection.head()
    assert await body(connection) == b""
    assert head.status == 201
    assert list(head.headers) == [
        (b"x-b", b"2"),
        (b"x-a", b"\xff caf\xc3\xa9"),
        (b"x-b", b"1"),
        (b"x-empty", b""),
        (b"transfer-encoding", b"chunked"),
    ]


async def test_header_value_on_two_lines(listener: Listener) -> None:
    """A folded line gives no value with a line break in it, which would be a line of its own further on."""
    connection, peer = await listener.asked()
    await peer.send(OK + b"x-a: one\r\n two\r\ncontent-length: 0\r\n\r\n")
    try:
        values = [value for _, value in (await connection.head()).headers]
    except UpstreamMalformed:
        return
    assert not any(b"\r" in value or b"\n" in value for value in values)


async def test_request_arrives_byte_for_byte(listener: Listener) -> None:
    """What is handed in is what the peer reads."""
    connection, peer = await listener.pair()
    for payload in (b"", b"x" * 65535, b"y" * 65536, b"z" * 1_000_000):
        connection.send(REQUEST, payload)
        assert await peer.request(len(REQUEST) + len(payload)) == REQUEST + payload
        await peer.send(OK + b"content-length: 0\r\n\r\n")
        await connection.head()
        assert await connection.read() == b""
        assert connection.recycle()


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_body_until_close(listener: Listener, version: bytes) -> None:
    """A body without a length ends, whole, with the connection; which is then of no more use."""
    connection, peer = await listener.asked()
    await peer.send(version + b" 200 OK\r\n\r\nhel", b"lo")
    peer.close()
    await connection.head()
    assert await body(connection) == b"hello"
    assert not connection.recycle()


async def test_body_until_close_that_is_reset(listener: Listener) -> None:
    """A reset is no end of a body that ends with the connection."""
    connection, peer = await listener.asked()
    await peer.send(OK + b"\r\nhel")
    await connection.head()
    assert await connection.read() == b"hel"
    peer.reset()
    with pytest.raises(UpstreamIncomplete):
        await connection.read()


async def test_body_until_close_that_we_closed(listener: Listener) -> None:
    """Our own closing is no end of a body either."""
    connection, peer = await listener.asked()
    await peer.send(OK + b"\r\nhel")
    await connection.head()
    assert await connection.read() == b"hel"
    connection.close()
    with pytest.raises(UpstreamIncomplete):
        await connection.read()


@pytest.mark.parametrize("name", NONSENSE)
async def test_nonsense_instead_of_a_head(listener: Listener, name: str) -> None:
    """A reply that is not HTTP/1.1 is malformed, never passed on, and costs the connection."""
    connection, peer = await listener.asked()
    await peer.send(NONSENSE[name])
    with pytest.raises(UpstreamMalformed):
        await connection.head()
    assert not connection.recycle()
    await peer.left()


@pytest.mark.parametrize("name", NONSENSE_LATER)
async def test_nonsense_inside_a_body(listener: Listener, name: str) -> None:
    """What came before the nonsense is passed on; then it is malformed, not a clean end."""
    reply, before = NONSENSE_LATER[name]
    connection, peer = await listener.asked()
    await peer.send(reply)
    seen, error = await failure(connection)
    assert isinstance(error, UpstreamMalformed)
    assert seen.startswith(before)
    assert not connection.recycle()


@pytest.mark.parametrize(
    "surplus",
    [
        b"HTTP/1.1 500 Second\r\ncontent-length: 3\r\n\r\nbad",
        b"HTTP/1.1 500 Second\r\n",
        b"garbage",
        b"\x00",
    ],
)
@pytest.mark.parametrize("together", [True, False], ids=["same-read", "later-read"])
async def test_bytes_after_the_reply(listener: Listener, surplus: bytes, together: bool) -> None:
    """Bytes beyond one reply change nothing of it, and the connection is not used again."""
    connection, peer = await listener.asked()
    if together:
        deliver(connection, SIZED + b"hello" + surplus)
    else:
        deliver(connection, SIZED + b"hello")
        deliver(connection, surplus)
    head = await connection.head()
    assert head.status == 200
    assert list(head.headers) == [(b"content-length", b"5")]
    assert await body(connection) == b"hello"
    assert not connection.recycle()
    await peer.left()


async def test_bytes_on_an_idle_connection(listener: Listener) -> None:
    """Bytes that answer no request close the connection: they could be taken for the next reply."""
    connection, peer = await listener.pair()
    await served(connection, peer)
    await peer.send(SIZED + b"early")
    await peer.left()
    assert not connection.usable


async def test_unread_body_is_not_reused(listener: Listener) -> None:
    """A connection whose reply was not read to its end carries no other request."""
    connection, peer = await listener.asked()
    await peer.send(SIZED + b"hello")
    await connection.head()
    await until(lambda: "buffered=5" in repr(connection))
    assert not connection.recycle()
    await peer.left()


async def test_half_a_reply_is_not_reused(listener: Listener) -> None:
    """Nor does one whose reply is still to come."""
    connection, peer = await listener.asked()
    await peer.send(SIZED + b"he")
    await connection.head()
    assert await connection.read() == b"he"
    assert not connection.recycle()
    await peer.left()


# -- limits


async def test_head_up_to_the_limit(listener: Listener) -> None:
    """A head of 256 KiB passes."""
    connection, peer = await listener.asked()
    lines = b"".join(b"x-%d: %b\r\n" % (number, b"v" * 1000) for number in range(255))
    await peer.send(OK + lines + b"content-length: 5\r\n\r\nhello")
    assert len((await connection.head()).headers) == 256
    assert await body(connection) == b"hello"


@pytest.mark.parametrize(
    ("start", "piece"),
    [(b"", b"x: " + b"v" * 4096 + b"\r\n"), (b"x: ", b"v" * 4096), (b"", b"n" * 4096)],
    ids=["many-lines", "one-endless-line", "one-endless-name"],
)
async def test_head_over_the_limit(listener: Listener, start: bytes, piece: bytes) -> None:
    """A head that goes on past the limit is malformed, and no more of it is read."""
    connection, peer = await listener.asked()
    await peer.send(OK + start)

    async def go_on() -> None:
        with suppress(ConnectionError):
            while True:
                await peer.send(piece)

    async with asyncio.TaskGroup() as group:
        group.create_task(go_on())
        _, error = await failure(connection)
    assert isinstance(error, UpstreamMalformed)
    assert connection._reply._non_body_bytes < DEFAULT_HEAD.size + 512 * 1024


async def test_head_over_the_limit_in_one_read(listener: Listener) -> None:
    """The limit holds for a head that is complete with the very read that goes past it."""
    connection, peer = await listener.asked()
    filler = b"x: " + b"v" * (DEFAULT_HEAD.size - 10) + b"\r\n"
    deliver(connection, OK + filler)
    deliver(connection, b"y: " + b"v" * 1000 + b"\r\ncontent-length: 5\r\n\r\nhello")
    with pytest.raises(UpstreamMalformed, match="size limit"):
        await connection.head()
    peer.close()


async def test_large_body_in_the_read_of_its_head(listener: Listener) -> None:
    """Body bytes do not count as head, however many come in one read."""
    connection, peer = await listener.asked()
    payload = b"b" * (2 * DEFAULT_HEAD.size)
    deliver(connection, OK + b"content-length: %d\r\n\r\n" % len(payload) + payload)
    await connection.head()
    assert await connection.read() == payload
    assert await connection.read() == b""
    peer.close()


@pytest.mark.parametrize(
    "endless",
    [b"HTTP/1.1 100 Continue\r\n\r\n" * 100, b"x" * 2500],
    ids=["interim-replies", "chunk-extension"],
)
async def test_endless_lead_in(listener: Listener, endless: bytes) -> None:
    """Neither interim replies nor a chunk's extension may go on for ever."""
    connection, peer = await listener.asked()
    if endless.startswith(b"x"):
        deliver(connection, CHUNKED + b"5;")
    for _ in range(DEFAULT_HEAD.size // len(endless) + 1):
        deliver(connection, endless)
    _, error = await failure(connection)
    assert isinstance(error, UpstreamMalformed)
    peer.close()


@pytest.mark.parametrize("line", [b"x-t: 1\r\n" * 512, b"v" * 4096], ids=["many-lines", "one-line"])
async def test_endless_trailers(listener: Listener, line: bytes) -> None:
    """Trailers may not go on for ever, and a reply that never ended is not whole."""
    connection, peer = await listener.asked()
    deliver(connection, CHUNKED + b"5\r\nhello\r\n0\r\nx: ")
    for _ in range(DEFAULT_HEAD.size // len(line) + 2):
        deliver(connection, line)
    seen, error = await failure(connection)
    assert isinstance(error, UpstreamMalformed)
    assert seen == b"hello"
    peer.close()


# -- how a connection ends

PHASES = {
    "nothing": b"",
    "status line": b"HTTP/1.1 200",
    "head": OK + b"content-len",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "before the body": SIZED,
    "body": SIZED + b"hell",
    "chunk size": CHUNKED + b"5",
    "chunk": CHUNKED + b"5\r\nhel",
    "between chunks": CHUNKED + b"5\r\nhello\r\n",
    "last chunk": CHUNKED + b"5\r\nhello\r\n0\r\n",
    "trailer": CHUNKED + b"5\r\nhello\r\n0\r\nx-t: 1\r\n",
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["close", "finish", "reset"])
@pytest.mark.parametrize("reused", [False, True], ids=["fresh", "reused"])
async def test_early_end(listener: Listener, phase: str, how: str, reused: bool) -> None:
    """A reply cut short in any phase is incomplete; as the peer read the request, it counts as received."""
    connection, peer = await listener.pair()
    await served(connection, peer, times=20 if reused else 0)
    connection.send(REQUEST, BODY)
    await peer.request()
    await peer.send(PHASES[phase])
    # Reads what was sent, so that a reset cannot overtake it.
    await until(lambda: connection._receipt.answered or not PHASES[phase])
    getattr(peer, how)()
    seen, error = await failure(connection)
    assert type(error) is UpstreamIncomplete
    assert seen in (b"", b"hel", b"hell", b"hello")
    assert not connection.recycle()


async def fails_as_received(connection: Connection) -> None:
    """There is no answer, and nothing proves that the request was not read."""
    with pytest.raises(UpstreamIncomplete) as caught:
        await connection.head()
    assert not isinstance(caught.value, NotReceived)


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_end_right_after_the_request_was_read(listener: Listener, how: str) -> None:
    """A reset hides the acknowledgement of a request that was read, and a close comes after it: neither
    proves that it was refused."""
    for _ in range(20):
        connection, peer = await listener.pair()
        await served(connection, peer, times=3)
        connection.send(REQUEST, BODY)
        assert peer.sock.recv(1000) == REQUEST + BODY
        getattr(peer, how)()
        await fails_as_received(connection)


@pytest.mark.parametrize("size", [2, 70_000, 5_000_000])
async def test_stale_connection(listener: Listener, size: int) -> None:
    """A request sent on a connection that its peer had closed by then was not received."""
    for times in (1, 3):
        connection, peer = await listener.pair()
        await served(connection, peer, times=times)
        peer.close()
        connection.send(REQUEST, b"x" * size)
        with pytest.raises(NotReceived):
            await connection.head()
        assert not connection.recycle()


async def test_peer_that_closed_only_its_own_side(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that says it will send no more may still read, so nothing proves that it did not."""
    monkeypatch.setattr(receipt_proof, "REFUSAL_WAIT", 0.02)
    connection, peer = await listener.pair()
    await served(connection, peer)
    peer.finish()
    connection.send(REQUEST, BODY)
    await fails_as_received(connection)
    assert await peer.request() == REQUEST + BODY
    await peer.left()


async def test_request_read_then_closed_then_reset(listener: Listener) -> None:
    """Neither a close nor a reset, nor both, undo what the peer had acknowledged by then."""
    connection, peer = await listener.pair()
    await served(connection, peer)
    connection.send(REQUEST, BODY)
    assert peer.sock.recv(1000) == REQUEST + BODY
    peer.finish()
    peer.reset()
    await fails_as_received(connection)


@pytest.mark.parametrize("times", [0, 1], ids=["as-soon-as-it-had-accepted", "after-a-request"])
async def test_peer_that_closed_and_was_noticed(listener: Listener, times: int) -> None:
    """On a connection known to be closed nothing is sent, and the failure says so instead of hanging."""
    connection, peer = await listener.pair()
    await served(connection, peer, times=times)
    peer.close()
    await until(lambda: not connection.usable)
    connection.send(REQUEST, BODY)
    with pytest.raises(NotReceived):
        await connection.head()


async def test_half_answered_on_a_stale_connection(listener: Listener) -> None:
    """Any byte of an answer shows that the request was taken, whatever the kernel says."""
    connection, peer = await listener.pair()
    await served(connection, peer)
    connection.send(REQUEST, BODY)
    deliver(connection, b"HTTP/1.1 2")
    peer.close()
    await fails_as_received(connection)


async def test_reply_before_the_request_was_written(listener: Listener) -> None:
    """An early reply to a large request is passed on; the connection, still full of it, is not used again."""
    connection, peer = await listener.pair()
    connection.send(REQUEST, b"x" * 64 * 1024 * 1024)
    await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nhello")
    assert (await connection.head()).status == 413
    assert await body(connection) == b"hello"
    assert not connection.recycle()
    await peer.left()


async def test_early_reply_and_close(listener: Listener) -> None:
    """The same from a peer that closes right after it, without reading the rest."""
    connection, peer = await listener.pair()
    connection.send(REQUEST, b"x" * 64 * 1024 * 1024)
    await peer.send(b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello")
    peer.close()
    assert (await connection.head()).status == 413
    assert await body(connection) == b"hello"
    assert not connection.recycle()


async def test_peer_that_stops_reading_and_leaves(listener: Listener) -> None:
    """A half-closed peer that reads no more cannot hold the exchange up with a request it does not take."""
    connection, peer = await listener.pair()
    connection.send(REQUEST, b"x" * 64 * 1024 * 1024)
    await peer.send(SIZED + b"he")
    await connection.head()
    peer.finish()
    seen, error = await failure(connection)
    assert isinstance(error, UpstreamIncomplete)
    assert seen == b"he"
    await peer.left()


async def test_close_while_waiting(listener: Listener) -> None:
    """Closing frees whoever waits, and the peer sees it at once."""
    connection, peer = await listener.asked()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(failure(connection))
        await asyncio.sleep(0)
        connection.close()
        connection.close()
    assert isinstance(waiting.result()[1], UpstreamIncomplete)
    await peer.left()


async def test_cancelled_wait_can_be_taken_up_again(listener: Listener) -> None:
    """A wait that was cancelled (for a keep-alive comment, say) loses nothing."""
    connection, peer = await listener.asked()
    await peer.send(SIZED)
    await connection.head()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await connection.read()
    await peer.send(b"hello")
    assert await body(connection) == b"hello"
    assert connection.recycle()


async def test_silence_is_told_of_only_when_it_lasted(listener: Listener) -> None:
    """What came but is no part of a body yet ends no silence, and is none either."""
    connection, peer = await listener.asked()
    await peer.send(CHUNKED)
    await connection.head()
    assert await connection.stays_silent(0.01)
    async with asyncio.TaskGroup() as group:
        silence = group.create_task(connection.stays_silent(30.0))
        await asyncio.sleep(0)
        deliver(connection, b"5\r\n")  # the size of a chunk
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not silence.done()
        deliver(connection, b"hello\r\n")
    assert not silence.result()
    assert connection.take() == b"hello"


# -- flow


async def pour(peer: Peer, total: int) -> int:
    """Send until ``total`` bytes are gone or nobody takes more; how many went."""
    sent, piece = 0, b"p" * 65536
    while sent < total:
        try:
            async with asyncio.timeout(0.3):
                await asyncio.get_running_loop().sock_sendall(peer.sock, piece)
        except TimeoutError:
            break
        sent += len(piece)
    return sent


async def test_reads_are_large_in_the_middle_of_something_long_only(listener: Listener) -> None:
    """Small events take several times their room while they are taken apart."""
    connection, _ = await listener.asked()
    line, lines = b"x" * USUAL_READ, b"data: x\n\n" * (2 * USUAL_READ // 9)
    for part, room in (
        (CHUNKED + b"%x\r\n" % (2 * len(line) + len(lines)), USUAL_READ),
        (line, READ_SIZE),
        (line, READ_SIZE),
        (lines, USUAL_READ),
        (b"\r\n%x\r\n" % len(line) + line, USUAL_READ),
    ):
        deliver(connection, part)
        assert len(connection.get_buffer(-1)) == room
        connection.take()


async def test_reader_that_does_not_read_stops_its_peer(listener: Listener) -> None:
    """At most 1 MiB is held for a reader that does not come; the rest waits at the worker."""
    connection, peer = await listener.asked()
    total = 64 * 1024 * 1024
    await peer.send(OK + b"content-length: %d\r\n\r\n" % total)
    await connection.head()
    sent = await pour(peer, total)
    assert sent < total
    assert HIGH_WATER < connection._reply.buffered < 1024 * 1024
    async with asyncio.TaskGroup() as group:
        rest = group.create_task(pour(peer, total - sent - 65536))
        seen = 0
        while not rest.done() or connection._reply.buffered:
            seen += len(await connection.read())
    assert rest.result() > 0


async def test_unread_stream_of_chunks_stops_its_peer(listener: Listener) -> None:
    """The same for many small events, which weigh more than their bytes."""
    connection, peer = await listener.asked()
    await peer.send(CHUNKED)
    await connection.head()
    chunk = b"10\r\ndata: 12345678\n\n\r\n" * 1000
    sent = 0
    try:
        while sent < 64 * 1024 * 1024:
            async with asyncio.timeout(0.3):
                await peer.send(chunk)
            sent += len(chunk)
    except TimeoutError:
        pass
    assert sent < 32 * 1024 * 1024
    assert connection._reply.buffered < 1024 * 1024


async def test_large_bodies_both_ways(listener: Listener) -> None:
    """64 MiB go up and come down whole, while neither side waits for the other to finish."""
    connection, peer = await listener.pair()
    block = random.Random(7).randbytes(1024 * 1024)
    payload = block * 64
    connection.send(b"POST / HTTP/1.1\r\n\r\n", payload)
    async with asyncio.TaskGroup() as group:
        got = group.create_task(peer.request(19 + len(payload)))
    assert got.result()[19:] == payload
    async with asyncio.TaskGroup() as group:
        group.create_task(peer.send(OK + b"content-length: %d\r\n\r\n" % len(payload), payload))
        await connection.head()
        back = await body(connection)
    assert back == payload
    assert connection.recycle()


async def test_peer_that_does_not_read_delays_only_itself(listener: Listener) -> None:
    """``send`` returns at once however large the request, and dropping it drops what was not sent."""
    connection, peer = await listener.pair()
    connection.send(REQUEST, b"x" * 32 * 1024 * 1024)
    connection.close()
    await peer.left()


# -- where


async def test_ipv6() -> None:
    """IPv6 works."""
    async with listening("::1") as listener:
        connection, peer = await listener.pair()
        await served(connection, peer, times=2)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("reply", [SIZED + b"hello", CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"])
async def test_tls(authority: trustme.CA, reply: bytes) -> None:
    """Over TLS the same is true, and a connection lost there always counts as received."""
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await reader.readexactly(len(REQUEST + BODY))
            writer.write(reply)
        writer.transport.abort()
        left.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=theirs)
    async with server:
        _, connection = await asyncio.get_running_loop().create_connection(
            connection_made, *server.sockets[0].getsockname(), ssl=ours, server_hostname="127.0.0.1"
        )
        for _ in range(2):
            connection.send(REQUEST, BODY)
            await connection.head()
            assert await body(connection) == b"hello"
            assert connection.recycle()
        connection.send(REQUEST, BODY)
        await left.wait()
        _, error = await failure_or_end(connection)
        assert not isinstance(error, NotReceived)
        connection.close()


async def failure_or_end(connection: Connection) -> tuple[bytes, Exception | None]:
    try:
        await connection.head()
        return await body(connection), None
    except UpstreamIncomplete as error:
        return b"", error


async def test_buffers_that_were_filled_give_the_loop_its_turn(listener: Listener) -> None:
    """Else all that a worker has ready would be read, and dealt with, in one go."""
    connection, peer = await listener.asked()
    total = 64 * READ_SIZE
    turns = [0]

    def turn() -> None:
        turns.append(0)
        if sum(turns) < total:
            asyncio.get_running_loop().call_soon(turn)

    async def take() -> None:
        # As an exchange does: in the callback that the bytes came by.
        while data := await connection.read():
            turns[-1] += len(data)

    async with asyncio.TaskGroup() as group:
        group.create_task(peer.send(OK + b"content-length: %d\r\n\r\n" % total, b"x" * total))
        await connection.head()
        turn()
        CoroutineStepper().start(take())
        await until(lambda: sum(turns) == total)
    # The turns of the loop and those of its callbacks may overlap.
    assert max(turns) <= 2 * MAX_FULL_READS * READ_SIZE


@pytest.mark.parametrize("size", [0, 1, SLICE, SLICE + 1, 3 * SLICE])
def test_slices_of_a_request_are_the_request(size: int) -> None:
    parts: list[bytes | memoryview] = [b"head", b"x" * size, memoryview(b"yz")]
    slices = list(_slices(parts))
    assert b"".join(slices) == b"".join(parts)
    assert max(map(len, slices)) <= SLICE
