"""What an exchange measures beside its phases: its acceptance."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.downstream.start_pacing import PER_ITERATION
from tests.support.generate import KINDS
from tests.support.socketless import STREAM_END, STREAM_HEAD, Rig, event, post
from tests.support.virtual_time import VirtualTimeLoop


@pytest.mark.virtual_time
async def test_exchange_is_accepted_when_its_head_is_complete_and_not_when_it_is_started() -> None:
    """So the duration and the TTFT of a request that start pacing delays are those its client sees."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    gateway = Rig("sglang", workers=1, kept=PER_ITERATION + 1)
    request = post(KINDS["sglang"], json.dumps({"input_ids": [1], "stream": True}).encode())
    clients = [gateway.client() for _ in range(PER_ITERATION + 1)]
    for client in clients:
        client.send(request)
    lifecycle = gateway.app.lifecycle
    assert lifecycle.open_exchanges == PER_ITERATION
    began, loop.now = loop.now, loop.now + 5  # as if other work took so long
    await asyncio.sleep(0)
    assert lifecycle.open_exchanges == PER_ITERATION + 1
    records = [live.record for live in lifecycle._open]  # type: ignore[attr-defined]
    assert {record.accepted_at for record in records} == {began}
    assert sorted(record.dispatched_at - began for record in records)[-2:] == [0, 5]
    token = b'{"meta_info":{"id":"a","finish_reason":{"type":"length"},"completion_tokens":1}}'
    for reply in gateway.replies():
        reply(STREAM_HEAD + event(token))
        reply(event(b"[DONE]") + STREAM_END)
    assert {record.ttft for record in records} == {record.elapsed for record in records} == {5}
    gateway.close()
