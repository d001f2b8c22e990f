"""A connection to a worker: reuse, early ends, and flow control. (Framing: test_reply_parser.py)"""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.errors import NotReceived, UpstreamIncomplete, UpstreamMalformed
from gateway.loop.stepper import CoroutineStepper
from gateway.upstream import receipt_proof
from gateway.upstream.connection import HIGH_WATER, Connection
from gateway.upstream.read_buffer import MAX_FULL_READS, READ_SIZE, USUAL_READ
from gateway.upstream.sliced_writer import SLICE, _slices
from tests.support.gateway import until
from tests.support.processes import PATIENCE
from tests.upstream.peer import BODY, REQUEST, Listener, Peer, body, deliver, served

OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"content-length: 5\r\n\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


async def failure(connection: Connection) -> tuple[bytes, Exception]:
    """Return the body bytes before the reply failed, and the error."""
    seen = b""
    try:
        await connection.head()
        while part := await connection.read():
            seen += part
    except UpstreamIncomplete as error:
        return seen, error
    raise AssertionError(f"a clean end after {seen!r}")


@pytest.mark.parametrize(
    ("reply", "reusable"),
    [
        (SIZED + b"hello", True),
        (CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", True),
        (OK + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", False),
    ],
    ids=["length", "chunks", "close"],
)
async def test_complete_reply_frees_the_connection_for_another_request(
    listener: Listener, reply: bytes, reusable: bool
) -> None:
    connection, peer = await listener.asked()
    await peer.send(reply)
    assert (await connection.head()).status == 200
    assert await body(connection) == b"hello"
    assert await connection.read() == b""
    assert connection.recycle() is reusable
    assert connection.closed is not reusable


async def test_request_arrives_byte_for_byte(listener: Listener) -> None:
    connection, peer = await listener.pair()
    block = random.Random(7).randbytes(1024 * 1024)
    for payload in (b"", block[:65535], block[:65536], block * 16):
        connection.send(REQUEST, payload)
        assert await peer.request(len(REQUEST) + len(payload)) == REQUEST + payload
        await peer.send(OK + b"content-length: 0\r\n\r\n")
        await connection.head()
        assert await connection.read() == b""
        assert connection.recycle()


@pytest.mark.parametrize("end", ["closed", "reset", "closed-here"])
async def test_body_without_a_length_ends_with_the_connection_if_the_peer_closes_it(
    listener: Listener, end: str
) -> None:
    connection, peer = await listener.asked()
    await peer.send(OK + b"\r\nhel")
    await connection.head()
    assert await connection.read() == b"hel"
    if end == "closed":
        await peer.send(b"lo")
        peer.close()
        assert await body(connection) == b"lo"
        assert not connection.recycle()
        return
    (peer.reset if end == "reset" else connection.close)()
    with pytest.raises(UpstreamIncomplete):
        await connection.read()


@pytest.mark.parametrize("surplus", [b"HTTP/1.1 500 Second\r\ncontent-length: 3\r\n\r\nbad", b"\x00"])
@pytest.mark.parametrize("together", [True, False], ids=["same-read", "later-read"])
async def test_bytes_after_the_reply_end_the_connection(
    listener: Listener, surplus: bytes, together: bool
) -> None:
    connection, peer = await listener.asked()
    for piece in [SIZED + b"hello" + surplus] if together else [SIZED + b"hello", surplus]:
        deliver(connection, piece)
    head = await connection.head()
    assert head.status == 200
    assert list(head.headers) == [(b"content-length", b"5")]
    assert await body(connection) == b"hello"
    assert not connection.recycle()
    await peer.closed()


async def test_bytes_that_are_no_reply_to_a_request_close_the_connection(listener: Listener) -> None:
    """Those on an idle one could be taken for the next reply."""
    connection, peer = await listener.asked()
    await peer.send(b"SSH-2.0-OpenSSH_9.6\r\n")
    with pytest.raises(UpstreamMalformed):
        await connection.head()
    await peer.closed()
    idle, peer = await listener.pair()
    await served(idle, peer)
    await peer.send(SIZED + b"early")
    await peer.closed()
    assert not (connection.usable or idle.usable)


@pytest.mark.parametrize("rest", [b"llo", b""], ids=["not-read", "not-received"])
async def test_connection_with_a_reply_that_was_not_read_to_its_end_is_not_reused(
    listener: Listener, rest: bytes
) -> None:
    connection, peer = await listener.asked()
    await peer.send(SIZED + b"he")
    await connection.head()
    assert await connection.read() == b"he"
    await peer.send(rest)
    await until(lambda: f"buffered={len(rest)}" in repr(connection))
    assert not connection.recycle()
    await peer.closed()


PHASES = {
    "nothing": b"",
    "status line": b"HTTP/1.1 200",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "before the body": SIZED,
    "body": SIZED + b"hell",
    "chunk size": CHUNKED + b"5",
    "chunk": CHUNKED + b"5\r\nhel",
    "between chunks": CHUNKED + b"5\r\nhello\r\n",
    "trailer": CHUNKED + b"5\r\nhello\r\n0\r\nx-t: 1\r\n",
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["close", "finish", "reset"])
@pytest.mark.parametrize("reused", [False, True], ids=["fresh", "reused"])
async def test_reply_that_ends_early_is_incomplete_and_its_request_counts_as_received(
    listener: Listener, phase: str, how: str, reused: bool
) -> None:
    connection, peer = await listener.pair()
    await served(connection, peer, times=20 if reused else 0)
    connection.send(REQUEST, BODY)
    await peer.request()
    await peer.send(PHASES[phase])
    # Wait until it was read: a reset can overtake bytes.
    await until(lambda: connection._receipt.answered or not PHASES[phase])
    getattr(peer, how)()
    seen, error = await failure(connection)
    assert type(error) is UpstreamIncomplete
    assert seen in (b"", b"hel", b"hell", b"hello")
    assert not connection.recycle()


async def fails_as_received(connection: Connection) -> None:
    """Check that the request fails without a proof that it was not received."""
    with pytest.raises(UpstreamIncomplete) as caught:
        await connection.head()
    assert not isinstance(caught.value, NotReceived)


@pytest.mark.parametrize("ends", [["reset"], ["close"], ["finish", "reset"]])
async def test_end_right_after_the_request_was_read_proves_nothing(
    listener: Listener, ends: list[str]
) -> None:
    """A reset can overtake the acknowledgement of a request that was read, and a close follows it."""
    for _ in range(20):
        connection, peer = await listener.pair()
        await served(connection, peer, times=3)
        connection.send(REQUEST, BODY)
        assert peer.sock.recv(1000) == REQUEST + BODY
        for how in ends:
            getattr(peer, how)()
        await fails_as_received(connection)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("size", [2, 70_000, 5_000_000])
async def test_request_on_a_connection_that_its_peer_had_closed_was_not_received(
    listener: Listener, size: int, known: bool
) -> None:
    """If that is known, nothing is sent, and nothing hangs."""
    for times in (0, 1, 3) if known else (1, 3):
        connection, peer = await listener.pair()
        await served(connection, peer, times=times)
        peer.close()
        if known:
            await until(lambda connection=connection: not connection.usable)  # type: ignore[misc]
        connection.send(REQUEST, b"x" * size)
        with pytest.raises(NotReceived):
            await connection.head()
        assert not connection.recycle()


async def test_peer_that_closed_only_its_sending_side_may_have_received_the_request(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_proof, "REFUSAL_WAIT", 0.02)
    connection, peer = await listener.pair()
    await served(connection, peer)
    peer.finish()
    connection.send(REQUEST, BODY)
    await fails_as_received(connection)
    assert await peer.request() == REQUEST + BODY
    await peer.closed()


@pytest.mark.parametrize("close", [False, True], ids=["open", "closed"])
async def test_reply_before_the_request_was_written_is_passed_on(listener: Listener, close: bool) -> None:
    """The connection still has unsent bytes of the request, so it is not used again."""
    connection, peer = await listener.pair()
    connection.send(REQUEST, b"x" * 64 * 1024 * 1024)
    line = b"connection: close\r\n" if close else b""
    await peer.send(b"HTTP/1.1 413 Too Large\r\n" + line + b"content-length: 5\r\n\r\nhello")
    if close:
        peer.close()
    assert (await connection.head()).status == 413
    assert await body(connection) == b"hello"
    assert not connection.recycle()
    if not close:
        await peer.closed()


async def test_peer_that_stops_reading_and_half_closes_ends_the_exchange(listener: Listener) -> None:
    """The unsent rest of the request does not delay that."""
    connection, peer = await listener.pair()
    connection.send(REQUEST, b"x" * 64 * 1024 * 1024)
    await peer.send(SIZED + b"he")
    await connection.head()
    peer.finish()
    seen, error = await failure(connection)
    assert isinstance(error, UpstreamIncomplete)
    assert seen == b"he"
    await peer.closed()


async def test_close_ends_a_wait_drops_what_is_unsent_and_is_seen_by_the_peer(listener: Listener) -> None:
    for unsent in (b"", b"x" * 32 * 1024 * 1024):
        connection, peer = await listener.pair()
        connection.send(REQUEST, unsent)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(failure(connection))
            await asyncio.sleep(0)
            for _ in range(2):
                connection.close()
        assert isinstance(waiting.result()[1], UpstreamIncomplete)
        await peer.closed()


async def test_cancelled_read_loses_nothing(listener: Listener) -> None:
    connection, peer = await listener.asked()
    await peer.send(SIZED)
    await connection.head()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await connection.read()
    await peer.send(b"hello")
    assert await body(connection) == b"hello"
    assert connection.recycle()


async def test_silence_ends_with_bytes_that_can_be_taken(listener: Listener) -> None:
    """Bytes that are not part of a body, such as a chunk size, do not end it."""
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


async def pour(peer: Peer, total: int, piece: bytes, patience: float = 1.0) -> int:
    """Send ``piece`` until ``total`` bytes are sent or none is taken for ``patience``; return how many were
    sent."""
    sent = 0
    while sent < total:
        try:
            async with asyncio.timeout(patience):
                await peer.send(piece)
        except TimeoutError:
            break
        sent += len(piece)
    return sent


async def test_reads_are_large_only_within_a_long_body(listener: Listener) -> None:
    """Splitting small events takes several times the size of the read."""
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


async def test_body_that_is_not_read_stops_its_peer(listener: Listener) -> None:
    connection, peer = await listener.asked()
    total, piece = 64 * 1024 * 1024, b"p" * 65536
    await peer.send(OK + b"content-length: %d\r\n\r\n" % total)
    await connection.head()
    sent = await pour(peer, total, piece)
    assert sent < total
    assert HIGH_WATER < connection._reply.buffered < 1024 * 1024
    async with asyncio.TaskGroup() as group:
        rest = group.create_task(pour(peer, total - sent - len(piece), piece, PATIENCE))
        while not rest.done() or connection._reply.buffered:
            await connection.read()
    assert rest.result() > 0


async def test_full_reads_give_the_event_loop_its_turn(listener: Listener) -> None:
    """Otherwise all bytes that a worker has ready would be handled in one iteration."""
    connection, peer = await listener.asked()
    total = 64 * READ_SIZE
    turns = [0]

    def turn() -> None:
        turns.append(0)
        if sum(turns) < total:
            asyncio.get_running_loop().call_soon(turn)

    async def take() -> None:
        # As an exchange does: in the callback that received the bytes.
        while data := await connection.read():
            turns[-1] += len(data)

    async with asyncio.TaskGroup() as group:
        group.create_task(peer.send(OK + b"content-length: %d\r\n\r\n" % total, b"x" * total))
        await connection.head()
        turn()
        CoroutineStepper().start(take())
        await until(lambda: sum(turns) == total)
    # Iterations of the loop and callbacks may overlap.
    assert max(turns) <= 2 * MAX_FULL_READS * READ_SIZE


@pytest.mark.parametrize("size", [0, 1, SLICE, SLICE + 1, 3 * SLICE])
def test_slices_of_a_request_are_the_request(size: int) -> None:
    parts: list[bytes | memoryview] = [b"head", b"x" * size, memoryview(b"yz")]
    slices = list(_slices(parts))
    assert b"".join(slices) == b"".join(parts)
    assert max(map(len, slices)) <= SLICE
