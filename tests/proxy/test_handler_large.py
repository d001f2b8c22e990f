"""Bodies and events too large to be inspected in one loop iteration, in a complete gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.proxy.live import LiveExchange
from gateway.sim import Reply, SimConfig, SimServer
from tests.support.gateway import RawClient, rig, until
from tests.support.generate import KINDS, body_of

NINE_MEBIBYTES = b"a longer text " * (9 * 1024 * 1024 // 14)
EVENTS = "text/event-stream"
#: What a last event says, but for what it is full of.
MEMBERS = {
    "sglang": b'"meta_info":{"id":"A","finish_reason":{"type":"stop"},"completion_tokens":2}',
    "vllm": b'"request_id":"generate-tokens-A","choices":[{"token_ids":[1,2],"finish_reason":"stop"}]',
}
DONE = b"data: [DONE]\n\n"


def event(kind: str, filling: bytes = NINE_MEBIBYTES) -> bytes:
    return b'data: {%b,"x":"%b"}\n\n' % (MEMBERS[kind], filling)


@pytest.mark.parametrize("kind", KINDS)
async def test_large_event_is_passed_on_unchanged_between_others(kind: str) -> None:
    body = b": first\n\n" + event(kind) + b": last\n\n" + DONE
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(body=body, content_type=EVENTS))
        reply = await gateway.client.post(
            KINDS[kind], json=body_of(kind, stream=True, rid="A", request_id="A")
        )
        assert (reply.status_code, reply.content == body) == (200, True)
        text = (await gateway.client.get("/metrics")).text
        assert 'output_sequence_tokens_sum{model="' in text
        (tokens,) = [line for line in text.splitlines() if "output_sequence_tokens_sum{" in line]
        assert tokens.endswith(" 2.0")


async def test_client_that_leaves_within_a_large_event_frees_its_worker() -> None:
    """Its steps are given up: it has read none of it."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(body=event("sglang") + DONE, content_type=EVENTS))
        client = await RawClient.connect(gateway.port)
        client.request("/generate", b'{"input_ids":[1],"stream":true,"rid":"r"}')
        await client.head()
        (live,) = gateway.app.lifecycle._open
        assert isinstance(live, LiveExchange)
        await until(lambda: live.record.reply_bytes > 0)
        client.leave()
        await until(lambda: not gateway.app.lifecycle.open_exchanges)
        assert await sim.abort_called(1)


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_large_body_without_a_length_arrives_byte_for_byte_unless_it_is_over_the_limit(
    path: str,
) -> None:
    body = b'{"input_ids":[1],"rid":"r","pad":"%b"}' % bytes(2 * 1024 * 1024).replace(b"\0", b"x")

    async def parts(more: bytes = b"") -> AsyncIterator[bytes]:
        yield body
        yield more

    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, body_limit_mb=3) as gateway:
        sim.behave(Reply(body=b'{"meta_info":{"id":"r"}}'), path=path, times=2)
        for more, status in ((b" ", 200), (body, 413)):
            reply = await gateway.client.post(path, content=parts(more))
            assert reply.status_code == status
        assert [arrival.body for arrival in sim.all_requests if arrival.target == path.encode()] == [
            body + b" "
        ]
