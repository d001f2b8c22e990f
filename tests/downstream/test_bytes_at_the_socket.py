"""Hostile bytes at a gateway as a user starts it: an answer or a close, and the worker gets what we read.

What is sent are the inputs kept for the fuzzing of the listener, and a few too long to keep.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from gateway.sim import SimConfig, SimServer
from tests.fuzz.listener import TARGET, reference
from tests.support.gateway import RawClient, eventually, until
from tests.support.processes import free_port, running

GOOD = json.dumps({"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}).encode()
#: What a client is told; and nothing at all, where it is hung up on.
ANSWERS = {None, 200, 400, 404, 405, 413, 431}
#: Silence after which a connection is taken to be waiting for more, in seconds.
QUIET = 2.0
_LINE = re.compile(rb"[!-9;-~]+: [^\r\n\0]*")
_MARK = b"x-case: "
_OUR_ID = re.compile(rb'"rid":"(?:[0-9a-f]{32}|job-1)",?')


def _cases() -> dict[str, bytes]:
    """Each with its name in the header lines of its requests."""
    head = b"POST /generate HTTP/1.1\r\nhost: a\r\n"
    long = {
        "url-of-100-kb": head.replace(b"generate", b"g" * 100_000) + b"content-length: 0\r\n\r\n",
        "query-of-100-kb": head.replace(b"generate", b"generate?" + b"q" * 100_000)
        + b"content-length: 0\r\n\r\n",
        "endless-lines": head + b"x-a: b\r\n" * 60_000,
        "endless-line": head + b"x-a: " + b"b" * 400_000,
        "endless-chunk-extension": head + b"transfer-encoding: chunked\r\n\r\n1;" + b"e" * 400_000,
        "endless-trailers": head + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x-a: b\r\n" * 60_000,
    }
    kept = {path.name: path.read_bytes() for path in TARGET.corpus()}
    return {
        name: data.replace(
            b"\nhost: a\r\n",
            b"\nhost: a\r\ncontent-type: application/json\r\n%b%b\r\n" % (_MARK, name.encode()),
        )
        for name, data in {**kept, **long}.items()
    }


class Tap:
    """In front of a worker: notes all bytes that it is sent, by connection."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.sent: list[bytearray] = []
        self._open: list[asyncio.StreamWriter] = []
        self._worker = port

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Tap]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield self
            for writer in self._open:
                writer.close()
            await until(lambda: not self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = bytearray()
        self.sent.append(sent)
        answers, worker = await asyncio.open_connection("127.0.0.1", self._worker)
        self._open += (writer, worker)
        await asyncio.gather(_copy(reader, worker, sent), _copy(answers, writer, bytearray()))
        self._open.remove(writer)
        self._open.remove(worker)

    def generates(self) -> dict[str, list[bytes]]:
        """The bodies of generate requests by the case that they came from; all else must be well-formed."""
        found: dict[str, list[bytes]] = defaultdict(list)
        for sent in self.sent:
            for target, case, body in _requests(bytes(sent)):
                if target.partition(b"?")[0] == b"/generate" and case:
                    found[case].append(_OUR_ID.sub(b"", body))
        return found


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            seen += data
            writer.write(data)
            await writer.drain()
    writer.close()


def _requests(sent: bytes) -> list[tuple[bytes, str, bytes]]:
    """Target, case and body of each; nothing but one strict form is taken."""
    found = []
    while sent:
        head, end, rest = sent.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        method, target, version = first.split(b" ")
        assert end and version == b"HTTP/1.1" and method.isalpha(), first
        assert all(_LINE.fullmatch(line) for line in lines), lines
        names = [line.partition(b":")[0].lower() for line in lines]
        assert (
            names.count(b"content-length") == names.count(b"host") == 1 and b"transfer-encoding" not in names
        )
        size = int(next(line for line in lines if line.startswith(b"content-length: "))[16:])
        assert len(rest) >= size, "a request that was not sent whole"
        case = next((line.removeprefix(_MARK).decode() for line in lines if line.startswith(_MARK)), "")
        found.append((target, case, rest[:size]))
        sent = rest[size:]
    return found


async def _told(port: int, data: bytes) -> int | None:
    """The status that the first bytes are answered by; None: hung up on, or still waited for."""
    client = await RawClient.connect(port)
    try:
        client.writer.write(data)
        told = b""
        with suppress(ConnectionError, TimeoutError):
            while part := await asyncio.wait_for(client.reader.read(65536), QUIET):
                told += part
        told = told.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        return int(told.split(b" ")[1]) if told else None
    finally:
        client.writer.transport.abort()


def _wanted(data: bytes) -> list[bytes]:
    """The generate requests among the bytes, as another implementation reads them."""
    read = reference(data)
    return [
        body
        for method, target, _, body in read
        if re.fullmatch(rb"/generate(\?.*)?", target) and method != b"GET"
    ]


@pytest.mark.parametrize("processes", [1, 2])
async def test_hostile_bytes_get_an_answer_or_a_close_and_no_second_reading(processes: int) -> None:
    """No request reaches the worker that is not in the bytes, none in another form, and service goes on."""
    port = free_port()
    async with SimServer("sglang", SimConfig()) as sim, Tap(sim.port).running() as tap:
        given = ["--worker", f"http://127.0.0.1:{tap.port}", "--probe-interval-secs", "0.2"]
        command = ["serve", "--host", "127.0.0.1", "--port", str(port), "--processes", str(processes), *given]
        with running(*command, "--no-access-log") as process:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                await eventually(lambda: _serve(client), 30)
                cases = _cases()
                statuses = dict(
                    zip(
                        cases,
                        await asyncio.gather(*(_told(port, data) for data in cases.values())),
                        strict=True,
                    )
                )
                assert {name: told for name, told in statuses.items() if told not in ANSWERS} == {}
                got = tap.generates()
                for name, data in cases.items():
                    wanted = _wanted(data)
                    assert not Counter(got[name]) - Counter(wanted), name
                assert got["sized"] and got["chunked"] and len(got["pipelined"]) == 4
                await eventually(lambda: _idle(client))
                assert await _serve(client)
            process.terminate()
            assert process.wait(20) == 0


async def _serve(client: httpx.AsyncClient) -> bool:
    """Whether every process does, as far as a dozen connections can tell."""
    headers = {"content-type": "application/json", "connection": "close"}
    try:
        replies = [await client.post("/generate", content=GOOD, headers=headers) for _ in range(12)]
    except httpx.TransportError:
        return False
    return all(reply.status_code == 200 for reply in replies)


async def _idle(client: httpx.AsyncClient) -> bool:
    text = (await client.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("dynamo_frontend_inflight_requests")]
    assert lines
    return all(float(line.rsplit(" ", 1)[1]) == 0 for line in lines)
