"""Hostile bytes at a gateway in a process of its own: a reply or a close, and no request that is not in them.

The inputs are the corpus of the listener's fuzzing target, and a few that are too long to be kept there.
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
#: The statuses of replies; None: the connection is closed without one.
ANSWERS = {None, 200, 400, 404, 405, 413, 431}
#: Seconds of silence after which the gateway is taken to wait for more.
QUIET = 2.0
_LINE = re.compile(rb"[!-9;-~]+: [^\r\n\0]*")
_MARK = b"x-case: "
_OUR_ID = re.compile(rb'"rid":"(?:[0-9a-f]{32}|job-1)",?')


def _cases() -> dict[str, bytes]:
    """Return the inputs by name; each request has the name in a header line."""
    head = b"POST /generate HTTP/1.1\r\nhost: a\r\n"
    long = {
        "url-of-100-kb": head.replace(b"generate", b"g" * 100_000) + b"content-length: 0\r\n\r\n",
        "query-of-100-kb": head.replace(b"te ", b"te?%b " % (b"q" * 100_000)) + b"content-length: 0\r\n\r\n",
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


class RecordingProxy:
    """A TCP proxy in front of a worker; it records the bytes that the gateway sends, by connection."""

    def __init__(self, worker_port: int) -> None:
        self.port = 0
        self.sent: list[bytearray] = []
        self._open: list[asyncio.StreamWriter] = []
        self._worker_port = worker_port

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RecordingProxy]:
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
        replies, worker = await asyncio.open_connection("127.0.0.1", self._worker_port)
        self._open += (writer, worker)
        await asyncio.gather(_copy(reader, worker, sent), _copy(replies, writer, bytearray()))
        self._open.remove(writer)
        self._open.remove(worker)

    def generates(self) -> dict[str, list[bytes]]:
        """Return the bodies of generate requests by case; fail if any byte is not of a strict request."""
        found: dict[str, list[bytes]] = defaultdict(list)
        for sent in self.sent:
            for target, case, body in _strict_requests(bytes(sent)):
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


def _strict_requests(sent: bytes) -> list[tuple[bytes, str, bytes]]:
    """Return target, case and body of each request in ``sent``; fail for any other form than one strict one.

    The worker's own parser would not do: a lenient one hides a request that two parsers read differently.
    """
    found = []
    while sent:
        head, end, rest = sent.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        method, target, version = first.split(b" ")
        assert end and version == b"HTTP/1.1" and method.isalpha(), first
        assert all(_LINE.fullmatch(line) for line in lines), lines
        names = [line.partition(b":")[0].lower() for line in lines]
        assert names.count(b"content-length") == names.count(b"host") == 1, names
        assert b"transfer-encoding" not in names
        size = int(next(line for line in lines if line.startswith(b"content-length: "))[16:])
        assert len(rest) >= size, "an incomplete request"
        case = next((line.removeprefix(_MARK).decode() for line in lines if line.startswith(_MARK)), "")
        found.append((target, case, rest[:size]))
        sent = rest[size:]
    return found


async def _status(port: int, data: bytes) -> int | None:
    """Return the status of the first reply to ``data``, None without one."""
    client = await RawClient.connect(port)
    try:
        client.writer.write(data)
        reply = b""
        with suppress(ConnectionError, TimeoutError):
            while part := await asyncio.wait_for(client.reader.read(65536), QUIET):
                reply += part
        reply = reply.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        return int(reply.split(b" ")[1]) if reply else None
    finally:
        client.writer.transport.abort()


def _wanted(data: bytes) -> list[bytes]:
    """Return the bodies of generate requests in ``data`` as h11 reads them."""
    generate = re.compile(rb"/generate(\?.*)?")
    return [
        body for method, target, _, body in reference(data) if generate.fullmatch(target) and method != b"GET"
    ]


@pytest.mark.parametrize("processes", [1, 2])
async def test_hostile_bytes_get_a_reply_or_a_close_and_become_no_other_request(processes: int) -> None:
    """Each request at the worker is in the bytes, and other requests are served."""
    port = free_port()
    async with SimServer("sglang", SimConfig()) as sim, RecordingProxy(sim.port).running() as proxy:
        given = ["--worker", f"http://127.0.0.1:{proxy.port}", "--probe-interval-secs", "0.2"]
        command = ["serve", "--host", "127.0.0.1", "--port", str(port), "--processes", str(processes), *given]
        with running(*command, "--no-access-log") as process:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                await eventually(lambda: _serve(client), 30)
                cases = _cases()
                statuses = await asyncio.gather(*(_status(port, data) for data in cases.values()))
                assert [each for each in zip(cases, statuses, strict=True) if each[1] not in ANSWERS] == []
                got = proxy.generates()
                for name, data in cases.items():
                    wanted = _wanted(data)
                    assert not Counter(got[name]) - Counter(wanted), name
                assert got["sized"] and got["chunked"] and len(got["pipelined"]) == 4
                await eventually(lambda: _idle(client))
                assert await _serve(client)
            process.terminate()
            assert process.wait(20) == 0


async def _serve(client: httpx.AsyncClient) -> bool:
    """Return True if a dozen requests over new connections are served."""
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
