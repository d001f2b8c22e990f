"""A broken stream of a relayed route never ends as if it were whole, whatever breaks it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.sim import Raw
from tests.support.fleet import fleet
from tests.support.gateway import RawClient

ODD = "/v1/odd"


def event(type: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type.encode(), json.dumps({"type": type, **members}).encode())


#: The beginning and the last event of a stream of each route.
STREAMS = {
    "/v1/messages": (event("message_start", message={"usage": {"input_tokens": 3}}), event("message_stop")),
    "/v1/responses": (
        event("response.created", response={"usage": None}, sequence_number=4),
        event("response.completed", response={"usage": None}, sequence_number=5),
    ),
    "/v1/chat/completions": (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b"data: [DONE]\n\n"),
    ODD: (b'data: {"text":"a"}\n\n', b'data: {"text":"b"}\n\n'),
}


def chunked(*events: bytes, end: bytes = b"") -> bytes:
    """A reply of the engine: the head, the events, and how its body ends."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in events) + end


def assert_error_of_its_api(path: str, received: bytes) -> None:
    """One event, and nothing behind it but the end that this API has."""
    data = json.loads(received.partition(b"data: ")[2].partition(b"\n\n")[0])
    assert received.endswith(b"data: [DONE]\n\n") is (path == "/v1/chat/completions")
    assert received.count(b"\n\n") == 1 + (path == "/v1/chat/completions")
    if path == "/v1/messages":
        assert received.startswith(b"event: error\n")
        assert (data["type"], data["error"].keys()) == ("error", {"type", "message"})
        assert data["error"]["type"] in ("api_error", "invalid_request_error")
    elif path == "/v1/responses":
        assert received.startswith(b"event: error\n") and data["error"]["message"] == data["message"]
        assert (data["type"], data["sequence_number"], data["param"]) == ("error", 5, None)
    else:
        assert data["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.virtual_time
@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("how", ["cut", "idle", "shutdown", "abort", "clean end"])
async def test_broken_stream_ends_with_the_error_of_its_api_or_is_cut(
    path: str, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A clean end without the last event of its API is a failure as well; of an unknown API it is an end."""
    first, _ = STREAMS[path]
    limit = {"idle": "9"}.get(how, "0")
    async with fleet("sglang", relay_path=(ODD,), idle_timeout_secs=limit, access_log=True) as of:
        end = b"0\r\n\r\n" if how == "clean end" else b""
        of.sims[0].behave(Raw(data=chunked(first, end=end), close=how in ("cut", "clean end")), path=path)
        client = await RawClient.connect(of.gateway.port)
        client.request(path, b"{}", headers=(("x-request-id", "A"), ("connection", "close")))
        await client.head()
        await client.reader.readuntil(first + b"\r\n")
        if how == "shutdown":
            await of.gateway.app.lifecycle.cut()
        elif how == "abort":  # by a name that the engine does not know
            await of.gateway.client.post("/abort_request", json={"rid": "A"})
        size, _, rest = (await client.reader.read()).partition(b"\r\n")
        known = path != ODD
        assert rest.endswith(b"0\r\n\r\n") is known
        if known:
            assert_error_of_its_api(path, rest[: int(size, 16)])
        else:
            assert size == (b"0" if how == "clean end" else b"")
        client.leave()
        text = (await of.gateway.client.get("/metrics")).text
        incomplete = 'error_type="internal"' in text and 'ending="incomplete"' in text
        assert incomplete is (how == "cut" or (how == "clean end" and known))
    (line,) = map(json.loads, capfd.readouterr().out.splitlines())
    logged = (line["endpoint"], line["error"] == "upstream_incomplete", line["ending"] == "incomplete")
    assert logged == (path, incomplete, incomplete)


@pytest.mark.parametrize("path", list(STREAMS)[:3])
async def test_connection_that_breaks_behind_the_last_event_breaks_no_reply(path: str) -> None:
    async with fleet("vllm") as of:
        of.sims[0].behave(Raw(data=chunked(*STREAMS[path])), path=path)
        reply = await of.gateway.client.post(path, content=b"{}")
        assert reply.content == b"".join(STREAMS[path])


async def test_errors_before_a_reply_have_the_shape_of_the_routes_api() -> None:
    async with fleet() as of:
        refused = await of.gateway.client.post("/v1/messages", content=b"{}")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (refused.json()["type"], refused.json()["error"].keys()) == ("error", {"type", "message"})
        other = await of.gateway.client.post("/v1/responses", content=b"{}")
        assert other.json()["error"].keys() == {"message", "type", "param", "code"}
