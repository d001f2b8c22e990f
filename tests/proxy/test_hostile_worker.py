"""Whatever a worker does, a client gets a 502 in its dialect or a visible cut, and nobody else the rest."""

from __future__ import annotations

import json

import pytest

from gateway.limits import DEFAULT_HEAD
from gateway.sim import Raw, Reply, SimConfig, SimServer
from tests.support.gateway import RawClient, all_released, generates, rig, sse, until
from tests.support.generate import KINDS, body_of

OK = b"HTTP/1.1 200 OK\r\n"
KIND = b"content-type: application/json\r\n"
CHUNKED = OK + KIND + b"transfer-encoding: chunked\r\n"
COMPLETE = b'{"text":"","meta_info":{"finish_reason":{"type":"stop"}},"choices":[]}'


def sized(body: bytes) -> bytes:
    return OK + KIND + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


SIZED = sized(COMPLETE)
EVENTS = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LINES = b"x-line: 1\r\n" * (DEFAULT_HEAD.size // 11 + 1000)

#: Replies that are none. Each is followed by one that would be.
BROKEN = {
    "endless-line": OK + b"x: " + b"y" * (DEFAULT_HEAD.size + 1000),
    "endless-lines": OK + LINES,
    "endless-interim-replies": b"HTTP/1.1 103 Early Hints\r\n\r\n" * (DEFAULT_HEAD.size // 28 + 1000),
    "endless-line-ends": b"\r\n" * DEFAULT_HEAD.size,
    "endless-trailers": CHUNKED + b"\r\n0\r\n" + LINES,
    "endless-chunk-extension": CHUNKED + b"\r\n1;" + b"e" * (DEFAULT_HEAD.size + 1000),
    "endless-chunk-size": CHUNKED + b"\r\n" + b"0" * (DEFAULT_HEAD.size + 1000),
    "chunk-over-64-bits": CHUNKED + b"\r\n" + b"f" * 17 + b"\r\n",
    "chunk-negative": CHUNKED + b"\r\n-1\r\n",
    "chunk-without-its-end": CHUNKED + b"\r\n2\r\n{}0\r\n\r\n",
    "both-lengths": CHUNKED + b"content-length: 2\r\n\r\n{}",
    "two-lengths": OK + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "two-different-lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "length-over-64-bits": OK + b"content-length: 99999999999999999999\r\n\r\n{}",
    "other-coding": OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "switched": b"HTTP/1.1 101 S\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "switched-in-silence": b"HTTP/1.1 101 S\r\n\r\n",
    "interim-with-a-body": b"HTTP/1.1 100 C\r\ncontent-length: 2\r\n\r\n{}",
    "folded": OK + b"x: a\r\n b\r\ncontent-length: 2\r\n\r\n{}",
    "bare-lf": b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}",
    "split-reply": OK + b"x: a\r\r\nset-cookie: b=c\r\ncontent-length: 2\r\n\r\n{}",
    "nul": OK + b"x: \0\r\ncontent-length: 2\r\n\r\n{}",
    "status-999": b"HTTP/1.1 999 What\r\ncontent-length: 2\r\n\r\n{}",
    "status-of-four-digits": b"HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\n{}",
    "request": b"POST /generate HTTP/1.1\r\nhost: a\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303"),
    "http-2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "banner": b"SSH-2.0-OpenSSH_9.2\r\n",
    "binary-body": sized(b"\x00\x01nonsense"),
    "half-json": sized(b'{"text": "unfinished'),
    "just-a-string": sized(b'"just a string"'),
}


def _connections(sim: SimServer) -> set[int]:
    return {arrival.connection for arrival in generates(sim)}


@pytest.mark.parametrize("kind", KINDS)
async def test_broken_reply_is_a_502_an_abort_and_the_end_of_its_connection(kind: str) -> None:
    """Whatever is wrong with it, and although a good reply lies behind it in the same bytes."""
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, poison_window_seconds=0) as gateway:
        for number, (name, broken) in enumerate(BROKEN.items(), 1):
            sim.behave(Raw(data=broken + SIZED, close=False))
            reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
            assert reply.status_code == 502, name
            error = reply.json()["error"]
            assert error["message"] and (kind == "sglang" or error["code"] == 502), name
            await until(lambda number=number: len(sim.aborts) == number)  # type: ignore[misc]
        assert len(generates(sim)) == len(_connections(sim)) == len(BROKEN)
        assert (await gateway.client.post(KINDS[kind], json=body_of(kind))).status_code == 200
        await until(lambda: all_released(gateway))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (SIZED + SIZED, 200),
        (SIZED + b"\0garbage", 200),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n{}", 204),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n{}", 304),
    ],
    ids=["a-reply", "garbage", "body-of-a-204", "body-of-a-304"],
)
async def test_bytes_behind_a_reply_are_nobodys(sent: bytes, status: int) -> None:
    """Not this client's, and not the next one's: the connection is not used again."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Raw(data=sent, close=False))
        first = await gateway.client.post("/generate", json=body_of("sglang"))
        assert (first.status_code, first.content) == (status, COMPLETE if status == 200 else b"")
        assert first.headers.get("content-length") in (None, str(len(first.content)))
        second = await gateway.client.post("/generate", json=body_of("sglang"))
        assert second.status_code == 200 and second.content != COMPLETE
        assert len(_connections(sim)) == 2


@pytest.mark.parametrize(
    "broken",
    [
        *(b"zz\r\n", b"3\r\nabcd\r\n", b"f" * 17 + b"\r\n", b"0\r\nx: \0\r\n\r\n"),
        *(chunk(b"data: %b\n\n" % data) for data in (b"{nonsense", b"\xff\xfe", b"5")),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_stream_that_breaks_or_makes_no_sense_ends_with_an_error_event_and_an_abort(
    kind: str, broken: bytes
) -> None:
    event = b'data: {"output_ids":[1],"meta_info":{"finish_reason":null},"choices":[]}\n\n'
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Raw(data=EVENTS + chunk(event) + broken, close=False))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 5, True))
        assert reply.status_code == 200
        assert reply.content.startswith(event) and reply.content.endswith(b"data: [DONE]\n\n")
        _, error = sse(reply.content)
        assert error["error"]["message"]
        await until(lambda: len(sim.aborts) == 1)


async def test_long_reply_whose_framing_breaks_is_visibly_cut() -> None:
    part = b'{"text":"' + b"a" * 2_000_000
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Raw(data=CHUNKED + b"\r\n" + chunk(part) + b"zz\r\n", close=False))
        client = await RawClient.connect(gateway.port, 2**22)
        client.request("/generate", json.dumps(body_of("sglang")).encode())
        received = await client.reader.read(-1)
        client.writer.transport.abort()
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b"chunked" in received.partition(b"\r\n\r\n")[0].lower()
        assert not received.endswith(b"0\r\n\r\n")
        await until(lambda: len(sim.aborts) == 1)


@pytest.mark.parametrize(
    "count", [10**400, 10**18, -5, 2**53 + 1], ids=["400-digits", "10**18", "below-0", "2**53+1"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_counts_that_can_be_none_change_no_metric_and_no_reply(
    kind: str, stream: bool, count: int
) -> None:
    """The reply is passed on, counted and logged once; the counts in it are nobody's."""
    usage: dict[str, object] = {"prompt_tokens": count, "completion_tokens": count}
    document: dict[str, object]
    if kind == "sglang":
        meta = {"finish_reason": {"type": "stop"}, **usage, "cached_tokens": count}
        document = {"text": "", "meta_info": meta}
    else:
        usage["prompt_tokens_details"] = {"cached_tokens": count}
        choices = [{"index": 0, "finish_reason": "stop", "token_ids": []}]
        document = {"choices": choices, "usage": usage}
    data = json.dumps(document).encode()
    body = b"data: %b\n\ndata: [DONE]\n\n" % data if stream else data
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(body=body, content_type="text/event-stream" if stream else "application/json"))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 5, stream))
        assert (reply.status_code, reply.content) == (200, body)
        await until(lambda: all_released(gateway))
        metrics = (await gateway.client.get("/metrics")).text
    lines = [line.rpartition(" ") for line in metrics.splitlines() if not line.startswith("#")]
    done = [value for name, _, value in lines if "_requests_total" in name and 'status="success"' in name]
    assert sum(map(float, done)) == 1
    sums = [value for name, _, value in lines if "tokens_sum" in name or "output_tokens_total" in name]
    assert all(0 <= float(value) < 100 for value in sums), sums
