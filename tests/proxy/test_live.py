"""What an exchange measures and does beside its phases: its acceptance, and the digest of its body."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import Any

import pytest

from gateway.downstream.start_pacing import PER_ITERATION
from gateway.proxy import query_of_death
from gateway.proxy.query_of_death import STEP
from gateway.sim import Pace, SimConfig, SimServer
from tests.support.gateway import rig, until
from tests.support.generate import JSON, KINDS, PROMPT, body_of
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


class Hashing:
    """Stands for ``blake2b``: counts the bytes hashed, in all and at most in one iteration of the loop."""

    def __init__(self) -> None:
        self.total = self.largest = self._now = 0

    def __call__(self, data: bytes = b"", *, digest_size: int) -> Hashing:
        self._hasher = blake2b(digest_size=digest_size)
        self.update(data)
        return self

    def update(self, data: Any) -> None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._next_iteration)
        self._now += len(data)
        self.total += len(data)
        self.largest = max(self.largest, self._now)
        self._hasher.update(data)

    def _next_iteration(self) -> None:
        self._now = 0

    def digest(self) -> bytes:
        return self._hasher.digest()


@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_long_body_is_hashed_in_steps(kind: str, armed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a reply to it broke off, and, while the query-of-death guard is armed, before it is dispatched."""
    hashing = Hashing()
    config = SimConfig(skip_tokenizer=kind == "vllm", tokens=4)
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer(kind, config)) for _ in range(3)]
        gateway = await stack.enter_async_context(rig(*(sim.url for sim in sims)))
        workers = gateway.app.fleet.workers
        if armed:
            for deaths in (1, 2):
                await gateway.client.post(KINDS[kind], json={**body_of(kind), PROMPT[kind]: [1, 40_000]})
                await until(lambda: sum(each.state == "dead" for each in workers) == deaths)  # noqa: B023
        monkeypatch.setattr(query_of_death, "blake2b", hashing)
        for sim in sims:
            sim.behave(Pace(prefill_base=60.0) if armed else Pace(cut_after=0, cut="rst"))
        body = json.dumps(body_of(kind)).encode() + b" " * 4 * STEP
        sent = asyncio.ensure_future(gateway.client.post(KINDS[kind], content=body, headers=JSON))
        await until(lambda: hashing.total >= len(body))
        assert hashing.largest <= STEP
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
