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
from tests.support.served import served

GOOD = json.dumps({"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}).encode()
#: The statuses of replies; None: the connection is closed without one.
ANSWERS = {None, 200, 400, 404, 405, 413, 431}
#: Seconds of silence after which the gateway is taken to wait for more.
QUIET = 2.0
_LINE = re.compile(rb"[!-9;-~]+: [^\r\n\0]*")
_MARK = b"x-case: "
_OUR_ID = re.compile(rb'"rid":"(?:~?[0-9a-f]{32}|job-1)",?')


def _cases() -> dict[str, bytes]:
    """Return the inputs by name; each request has the name in a header line."""
    head = b"POST /generate HTTP/1.1\r\nhost: a\r\n"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    long = {
        "url-of-100-kb": head.replace(b"generate", b"g" * 100_000) + b"content-length: 0\r\n\r\n",
        "query-of-100-kb": head.replace(b"te ", b"te?%b " % (b"q" * 100_000)) + b"content-length: 0\r\n\r\n",
        "endless-lines": head + b"x-a: b\r\n" * 60_000,
        "endless-line": head + b"x-a: " + b"b" * 400_000,
        "endless-chunk-extension": chunked + b"1;" + b"e" * 400_000,
        "endless-trailers": chunked + b"0\r\n" + b"x-a: b\r\n" * 60_000,
    }
    inputs = {**{path.name: path.read_bytes() for path in TARGET.corpus()}, **long}
    marked = b"\nhost: a\r\ncontent-type: application/json\r\n%b%b\r\n"
    return {
        name: data.replace(b"\nhost: a\r\n", marked % (_MARK, name.encode())) for name, data in inputs.items()
    }


@asynccontextmanager
async def _recorded(worker_port: int, sent: list[bytearray]) -> AsyncIterator[str]:
    """Give the URL of a TCP proxy in front of a worker; it adds the bytes of each connection to ``sent``."""
    open_now: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.append(bytearray())
        replies, worker = await asyncio.open_connection("127.0.0.1", worker_port)
        open_now.extend((writer, worker))
        await asyncio.gather(_copy(reader, worker, sent[-1]), _copy(replies, writer, bytearray()))
        open_now.remove(writer)
        open_now.remove(worker)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in open_now:
            writer.close()
        await until(lambda: not open_now)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            seen += data
            writer.write(data)
            await writer.drain()
    writer.close()


def _generates(sent: list[bytearray]) -> dict[str, list[bytes]]:
    """Return the bodies of generate requests by case; fail if any byte is not of a strict request."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for data in sent:
        for target, case, body in _strict_requests(bytes(data)):
            if target.partition(b"?")[0] == b"/generate" and case:
                found[case].append(_OUR_ID.sub(b"", body))
    return found


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


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_hostile_bytes_get_a_reply_or_a_close_and_become_no_other_request(processes: str) -> None:
    """Each request at the worker is in the bytes, and other requests are served."""
    sent: list[bytearray] = []
    variables = {"DYN_HTTP_PROCESSES": processes, "DYN_PROBE_INTERVAL_SECS": "0.2", "DYN_ACCESS_LOG": "false"}
    async with SimServer("sglang", SimConfig()) as sim, _recorded(sim.port, sent) as url:
        async with served(url, **variables) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
                await eventually(lambda: _serve(client), 30)
                cases = _cases()
                statuses = await asyncio.gather(*(_status(gateway.port, data) for data in cases.values()))
                assert [each for each in zip(cases, statuses, strict=True) if each[1] not in ANSWERS] == []
                got = _generates(sent)
                for name, data in cases.items():
                    assert not Counter(got[name]) - Counter(_wanted(data)), name
                assert got["sized"] and got["chunked"] and len(got["pipelined"]) == 4
                await eventually(lambda: _idle(client))
                assert await _serve(client)
            gateway.process.terminate()
            assert await gateway.process.wait() == 0


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
