"""Clients of the run, many in one process, each of which sends requests as its choices determine.

``python -m tests.chaos.run.client SEED PORT PREFIX FIRST COUNT SECONDS PROFILE BOOK``
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import TypeVar

import uvloop

from gateway.loop.tasks import Tasks
from tests.chaos.run import choices as chosen
from tests.chaos.run.choices import PROFILES, Choice, Profile
from tests.chaos.run.dialects import ABORT_PATHS, MARKER_HEADER, abort_of, body_of, output_of, prompt_of
from tests.chaos.run.expected import Expected, Wrong
from tests.chaos.run.http import Broken, Connection, Head, request
from tests.chaos.run.records import Book, ClientRecord, Outcome
from tests.support.generate import KINDS

#: Seconds without a byte after which a client gives up, and a pause before it looks a second time.
PATIENCE, SECOND_LOOK = 6.0, 1.0
#: Seconds after which bytes that are no request count as unanswered, however busy the machine is.
UNANSWERED_AFTER = 48.0

T = TypeVar("T")


class Disconnected(Exception):
    """The client disconnected on purpose; the text says when."""


class Client:
    """A client. ``name`` is part of the markers of its requests."""

    def __init__(self, name: str, port: int, book: Book) -> None:
        self._name = name
        self._port = port
        self._book = book
        self._line: Connection | None = None
        self._tasks = Tasks()
        self._number = 0

    async def run(self, seed: str, until: float, profile: Profile) -> None:
        """Send requests until ``until`` (monotonic), then disconnect."""
        for choice in chosen.choices(f"{seed}/{self._name}", profile):
            await asyncio.sleep(min(choice.pause, max(0.0, until - time.monotonic())))
            if time.monotonic() >= until:
                break
            await self._send(choice)
        await self._tasks.stop()
        self._hang_up()

    async def _send(self, choice: Choice) -> None:
        self._number += 1
        record = ClientRecord(
            f"{self._name}n{self._number}", choice.what, choice.kind, choice.stream, tokens=choice.tokens
        )
        record.sent = time.monotonic()
        try:
            if self._line is None:
                self._line = await Connection.open(self._port)
            await self._do(choice, record, self._line)
        except Disconnected as left_at:
            record.outcome, record.detail = Outcome.LEFT, str(left_at)
            self._hang_up(reset=choice.reset)
        except TimeoutError:
            record.outcome, record.detail = Outcome.LEFT, "out of patience"
            self._hang_up(reset=choice.reset)
        except (Broken, Wrong) as fault:
            record.outcome = Outcome.BROKEN if isinstance(fault, Broken) else Outcome.WRONG
            record.detail = str(fault)
            self._hang_up()
        record.ended = time.monotonic()
        self._book.write(record)

    def _hang_up(self, *, reset: bool = False) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.leave(reset=reset)

    async def _do(self, choice: Choice, record: ClientRecord, line: Connection) -> None:
        path, marker = KINDS[choice.kind], (MARKER_HEADER, record.marker)
        if choice.what == chosen.GARBAGE:
            return await self._garbage(choice, record)
        if choice.what == chosen.NO_ROUTE:
            record.counts = False
            method, path = ("DELETE", path) if choice.reset else ("POST", "/nothing")
            line.send(request(method, path, b""))
        elif choice.what == chosen.BAD_JSON:
            line.send(request("POST", path, b'{"input_ids": [1, 2', (marker,)))
        elif choice.what == chosen.HALF_BODY:
            record.counts, record.may_count = False, True
            line.send(request("POST", path, b'{"input_ids": [1, 2', (marker,), length=5000))
            await asyncio.sleep(choice.delay)
            raise Disconnected("in its body")
        else:
            return await self._generate(choice, record, line)
        await self._read(choice, record, line, None)

    async def _garbage(self, choice: Choice, record: ClientRecord) -> None:
        record.counts, record.may_count = False, True
        line = await Connection.open(self._port)
        try:
            line.send(choice.garbage)
            async with asyncio.timeout(UNANSWERED_AFTER):
                head = await line.head()
            if not 400 <= head.status < 500:
                raise Wrong(f"garbage was answered {head.status}")
            record.outcome, record.status = Outcome.REFUSED, head.status
        except Broken:
            record.outcome = Outcome.CLOSED
        except TimeoutError:
            record.outcome = Outcome.UNANSWERED
        finally:
            line.leave(reset=choice.reset)

    async def _generate(self, choice: Choice, record: ClientRecord, line: Connection) -> None:
        id = choice.shared_id or (record.marker if choice.what == chosen.ABORT or choice.events % 2 else None)
        in_header = choice.id_in_header and id is not None and id.isascii()
        prompt = prompt_of(record.marker, choice.prompt)
        in_body = None if in_header else id
        body = body_of(choice.kind, record.marker, prompt, choice.tokens, stream=choice.stream, id=in_body)
        headers = ((MARKER_HEADER, record.marker), *choice.headers)
        if in_header and id is not None:
            headers += (("X-Request-Id", id),)
        line.send(request("POST", KINDS[choice.kind], body, headers))
        expected = Expected(choice.kind, id, output_of(prompt, choice.tokens))
        if choice.what == chosen.ABORT and id is not None:
            self._tasks.spawn(self._abort(choice, record, id), "abort")
        if choice.what != chosen.LEAVE:
            return await self._read(choice, record, line, expected)
        record.may_count = True
        if choice.moment == chosen.AT_ONCE:
            raise Disconnected("at once")
        try:
            async with asyncio.timeout(choice.delay if choice.moment == chosen.LATER else None):
                await self._read(choice, record, line, expected)
        except TimeoutError:
            raise Disconnected("waiting") from None

    async def _abort(self, choice: Choice, record: ClientRecord, id: str) -> None:
        await asyncio.sleep(choice.delay)
        line = await Connection.open(self._port)
        record.abort_asked = time.monotonic()
        try:
            async with asyncio.timeout(2 * PATIENCE):
                line.send(request("POST", ABORT_PATHS[choice.kind], abort_of(choice.kind, id)))
                await line.head()
        finally:
            line.leave(reset=False)

    async def _read(
        self, choice: Choice, record: ClientRecord, line: Connection, expected: Expected | None
    ) -> None:
        head = await _with_patience(line.head())
        record.status = head.status
        if choice.what == chosen.LEAVE and choice.moment == chosen.AT_HEAD:
            raise Disconnected("at the head")
        if head.status < 400 and expected is None:
            raise Wrong(f"{choice.what} was answered {head.status}")
        if head.headers.get("content-type", "").startswith("text/event-stream"):
            assert expected is not None
            await self._read_stream(choice, record, line, head, expected)
        else:
            body = b"".join([piece async for piece in _pieces(line, head)])
            _judge(record, head, body, expected)
        if head.headers.get("connection") == "close":
            self._hang_up()

    async def _read_stream(
        self, choice: Choice, record: ClientRecord, line: Connection, head: Head, expected: Expected
    ) -> None:
        rest, events = b"", 0
        async for piece in _pieces(line, head):
            *complete, rest = (rest + piece).split(b"\n\n")
            for event in complete:
                events += 1
                expected.take(event)
            if choice.what == chosen.LEAVE and choice.moment == chosen.AT_EVENT and events >= choice.events:
                raise Disconnected("in the stream")
            if choice.what == chosen.STALL and events and not record.detail:
                record.detail = "stopped reading"
                await asyncio.sleep(1 + 3 * choice.delay)
                if choice.reset:
                    raise Disconnected("with its replies unread")
        if rest:
            raise Wrong(f"a stream ends with {rest[:80]!r}")
        expected.close()
        _record_success(record, expected)


def _judge(record: ClientRecord, head: Head, body: bytes, expected: Expected | None) -> None:
    """Check a unary reply. Raises Wrong."""
    if head.status >= 400:
        record.outcome, record.detail = Outcome.REFUSED, body[:200].decode("utf-8", "replace")
        if not isinstance(_json(body), dict):
            raise Wrong(f"status {head.status} with a body that is no JSON object: {body[:80]!r}")
        return
    assert expected is not None
    expected.part(body)
    expected.check()
    _record_success(record, expected)


def _record_success(record: ClientRecord, expected: Expected) -> None:
    record.finish = expected.finish
    record.outcome = Outcome.COMPLETE if expected.error is None else Outcome.ERROR
    if expected.error is not None:
        record.detail = expected.error


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None


async def _pieces(line: Connection, head: Head) -> AsyncIterator[bytes]:
    """Yield the pieces of a body. Raises TimeoutError if none arrives in time."""
    pieces = line.body(head)
    while (piece := await _with_patience(anext(pieces, None))) is not None:
        yield piece


async def _with_patience(work: Awaitable[T]) -> T:
    """Return the result of ``work``. Raises TimeoutError if it takes too long.

    This process itself may have been kept from running, so data that has arrived is read before the timeout
    counts.
    """
    task = asyncio.ensure_future(work)
    try:
        for patience in (PATIENCE, SECOND_LOOK):
            if (await asyncio.wait([task], timeout=patience))[0]:
                return task.result()
    finally:
        task.cancel()
    raise TimeoutError


async def crowd(seed: str, port: int, names: list[str], seconds: float, profile: Profile, book: Book) -> None:
    until = time.monotonic() + seconds
    clients = [Client(name, port, book) for name in names]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(seed, until, profile))


def main(arguments: list[str]) -> None:
    seed, port, prefix, first, count, seconds, profile, path = arguments
    names = [f"{prefix}c{number}" for number in range(int(first), int(first) + int(count))]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(crowd(seed, int(port), names, float(seconds), PROFILES[profile], Book(Path(path))))


if __name__ == "__main__":
    main(sys.argv[1:])
