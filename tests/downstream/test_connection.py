"""Raw bytes at the listening socket, and what a client may do with its connection."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.fleet.registry import Fleet
from gateway.sim import Pace, SimConfig, SimServer
from gateway.wiring.gateway import Gateway
from tests.support.gateway import RawClient, arrived, generates, rig, until
from tests.support.generate import body_of

SMALL = json.dumps(body_of("sglang", rid="r")).encode()


async def _reply(client: RawClient) -> tuple[bytes, bytes]:
    """Head and body of a reply that has a length."""
    head = await client.head()
    lines = head.lower().split(b"\r\n")
    length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))
    return head, await client.reader.readexactly(length)


async def test_connection_is_kept_for_any_number_of_requests() -> None:
    """Generate requests, control requests and refused ones in turn."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        for _ in range(3):
            for path, method, body, status in (
                ("/generate", "POST", SMALL, b"200"),
                ("/generate?x=1", "PUT", SMALL, b"200"),
                ("/health", "GET", b"", b"200"),
                ("/generate", "GET", b"", b"405"),
                ("/nothing", "GET", b"", b"404"),
                ("/generate", "POST", b"{", b"400"),
            ):
                client.request(path, body, method=method)
                head, _ = await _reply(client)
                assert head.split(b" ")[1] == status, (path, head)
        client.leave()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        for index in range(40):
            client.request("/generate", json.dumps(body_of("sglang", rid=f"r{index:02}")).encode())
        client.request("/health", b"", method="GET")
        for index in range(40):
            _, body = await _reply(client)
            assert json.loads(body)["meta_info"]["id"] == f"r{index:02}"
        assert (await _reply(client))[0].startswith(b"HTTP/1.1 200 ")
        client.leave()


async def test_client_that_sent_ahead_and_left_is_noticed() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Pace(prefill_base=60.0))
        client = await RawClient.connect(gateway.port)
        client.request("/generate", SMALL)
        client.request("/generate", SMALL)
        await arrived(1, sim)
        client.leave()
        await sim.client_gone(1)
        await until(lambda: gateway.app.lifecycle.open_exchanges == 0)
        assert len(generates(sim)) == 1


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
        b"POST /generate HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"POST /generate HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nhost: g\r\ncontent-length: -1\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nhost: g\r\ncontent-length: 1e3\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nhost: g\r\n folded: x\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /generate HTTP/1.1\r\nhost : g\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /generate HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
        b"POST /generate HTTP/9.9\r\nhost: g\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /gen\x00erate HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n{}",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=[
        "tls", "no-target", "two-lengths", "both-lengths", "odd-coding", "negative", "not-a-number", "fold",
        "space-before-colon", "huge-chunk", "version", "nul", "http2",
    ],
)  # fmt: skip
async def test_bytes_that_are_no_request_get_a_400_or_a_close_and_reach_no_worker(
    request_bytes: bytes,
) -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(request_bytes)
        answer = await asyncio.wait_for(client.reader.read(-1), 5)
        client.leave()
        assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 ")), answer
        if answer.startswith(b"HTTP/1.1 400 "):
            said = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert said == {"message": "Invalid HTTP request", "type": "Bad Request", "code": 400}
        assert not generates(sim)
        assert (await gateway.client.get("/health")).status_code == 200


@pytest.mark.parametrize("where", [(Fleet, "models"), (Gateway, "__call__")], ids=["route", "application"])
async def test_fault_of_the_control_plane_is_a_500_in_its_own_shape(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback goes to the log and not to the client."""

    def faulty(*_: object) -> None:
        raise RuntimeError("a secret")

    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        with monkeypatch.context() as patch:
            patch.setattr(*where, faulty)
            reply = await gateway.client.get("/v1/models")
        assert reply.status_code == 500
        assert reply.json() == {
            "message": "internal error of the gateway", "type": "Internal Server Error", "code": 500
        }  # fmt: skip
        assert "a secret" in caplog.text
        assert (await gateway.client.get("/v1/models")).status_code == 200


async def test_http_1_0_gets_a_reply_that_ends_with_the_connection() -> None:
    """No chunk framing for a client that does not know it."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        sent = json.dumps(body_of("sglang", 2, True)).encode()
        client.writer.write(b"POST /generate HTTP/1.0\r\ncontent-type: application/json\r\n")
        client.writer.write(b"content-length: %d\r\n\r\n%b" % (len(sent), sent))
        answer = await client.reader.read(-1)
        client.leave()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n")


async def test_absolute_form_and_escaped_path_reach_the_same_endpoint() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        for target in ("/gener%61te", "/generate?a=/b"):
            client.request(target, SMALL)
            assert (await _reply(client))[0].startswith(b"HTTP/1.1 200 "), target
        client.leave()


async def test_connection_close_is_honoured() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        client.request("/generate", SMALL, headers=(("connection", "close"),))
        answer = await client.reader.read(-1)
        client.leave()
        assert b"\r\nconnection: close\r\n" in answer.lower()


@pytest.mark.parametrize("path", ["/health", "/engine_metrics", "/workers/events", "/nothing"])
async def test_head_request_has_the_head_of_a_get_and_no_body(path: str) -> None:
    """Of a stream, be it one without an end, as well: the next reply follows at once."""
    async with SimServer("sglang", SimConfig(enable_metrics=True)) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        client.request(path, b"", method="HEAD")
        client.request("/live", b"", method="GET")
        head = await client.head()
        assert b"content-length" in head or b"transfer-encoding" in head
        assert (await asyncio.wait_for(client.head(), 10)).startswith(b"HTTP/1.1 200 ")
        client.leave()


@pytest.mark.parametrize(
    "start",
    [
        b"POST /" + b"x" * 300_000,
        b"POST /generate HTTP/1.1\r\nx: " + b"y" * 300_000,
        b"POST /generate HTTP/1.1\r\n" + b"x: yyyyyyyy\r\n" * 30_000,
        b"POST /generate HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n5;" + b"z" * 900_000,
    ],
    ids=["target", "one-header", "many-headers", "chunk-extension"],
)
async def test_head_without_end_is_refused_at_256_kib(start: bytes) -> None:
    """So is anything else that is no body; nothing more is held for it, and no worker hears of it."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(start)
        try:
            answer = await asyncio.wait_for(client.reader.read(-1), 10)
        except ConnectionError:
            answer = b""  # closed while it still sent, which resets the connection
        client.leave()
        assert answer == b"" or answer.split(b" ")[1] in (b"400", b"431"), answer[:100]
        assert not generates(sim)
        await until(lambda: gateway.app.lifecycle.open_exchanges == 0)


async def test_head_just_under_the_limit_is_served() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        client.request("/health", b"", method="GET", headers=(("x", "y" * 200_000),))
        assert (await _reply(client))[0].startswith(b"HTTP/1.1 200 ")
        client.leave()


async def test_connection_is_kept_after_a_body_over_the_limit() -> None:
    """The rest of the refused body is read and dropped; what follows is served."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, body_limit_mb=1) as gateway:
        client = await RawClient.connect(gateway.port)
        part = b"a" * 65536
        client.writer.write(b"POST /generate HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(40):
            client.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        client.writer.write(b"0\r\n\r\n")
        assert (await _reply(client))[0].startswith(b"HTTP/1.1 413 ")
        client.request("/generate", SMALL)
        assert (await _reply(client))[0].startswith(b"HTTP/1.1 200 ")
        client.leave()


async def test_body_sent_ahead_of_its_turn_fills_a_bounded_buffer_only() -> None:
    """While a request waits for its worker, what its client sends ahead is not taken without end."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Pace(prefill_base=60.0))
        client = await RawClient.connect(gateway.port)
        client.request("/generate", SMALL)
        await arrived(1, sim)
        size = 64 * 1024 * 1024
        client.writer.write(b"POST /generate HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n" % size)
        client.writer.write(b"x" * size)
        # What the sockets on the way take is gone at once; the rest must stay with the client.
        await asyncio.sleep(0.05)
        left = client.writer.transport.get_write_buffer_size()
        await asyncio.sleep(0.05)
        assert client.writer.transport.get_write_buffer_size() == left > size // 2
        client.leave(reset=True)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"POST /generate HTTP/1.1\r\nconnection: close", b"413"),
        (b"POST /nothing HTTP/1.1\r\nconnection: close", b"404"),
        (b"POST /generate HTTP/9.1", b"400"),
    ],
    ids=["too-large", "no-route", "no-request"],
)
async def test_client_that_is_still_sending_gets_its_last_reply_and_no_reset(
    line: bytes, status: bytes
) -> None:
    """Many clients look for a reply only once all is sent, and a reset would keep them from that."""
    async with rig(body_limit_mb=1) as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(line + b"\r\nhost: g\r\ncontent-length: 33554432\r\n\r\n")
        for _ in range(512):
            client.writer.write(bytes(65536))
            await client.writer.drain()
        assert (await client.reader.read(-1)).startswith(b"HTTP/1.1 %b " % status)
        client.leave()
