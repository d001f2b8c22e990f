"""How many connections the gateway has on its own account."""

from __future__ import annotations

import asyncio

import pytest

from gateway.fleet.client import WorkerCall, WorkerCallFailed, WorkerCalls
from gateway.fleet.health.probe import ask as ask_probe
from tests.fleet.engine import EchoFormat, engine

pytestmark = pytest.mark.virtual_time

CALL = WorkerCall(b"GET", b"/info")
CALLS = WorkerCalls(lambda worker: None)


async def test_connections_of_each_kind_are_capped_and_others_wait() -> None:
    async with engine() as server:
        worker = server.worker()
        worker.quotas.of_fleet.limit(3)
        calls = [CALLS.send_within_quota(worker, CALL, seconds=5, limit=1000) for _ in range(20)]
        assert all(answer.accepted for answer in await asyncio.gather(*calls))
        assert server.most_at_once == 3
        for first_contact in (True, False):
            asking = (ask_probe(worker, EchoFormat.health, first_contact=first_contact) for _ in range(20))
            assert None not in await asyncio.gather(*asking) and server.most_at_once == 3


async def test_workers_that_do_not_answer_delay_only_first_contacts() -> None:
    async with engine() as server:
        worker = server.worker()
        worker.quotas.of_fleet.limit(1)
        async with worker.quotas.of_fleet.first_contacts, asyncio.timeout(5):
            assert await ask_probe(worker, EchoFormat.health) is not None
        async with worker.quotas.of_fleet.probes, asyncio.timeout(5):
            assert await ask_probe(worker, EchoFormat.health, first_contact=True) is not None


async def test_call_that_waits_for_its_quota_ends_in_time() -> None:
    """A call to a single worker is not capped."""
    async with engine() as server:
        worker = server.worker()
        worker.quotas.of_fleet.limit(1)
        async with worker.quotas.of_fleet.calls:
            with pytest.raises(WorkerCallFailed, match=r"no answer within 0\.01 s"):
                await CALLS.send_within_quota(worker, CALL, seconds=0.01, limit=1000)
            assert (await CALLS.send(worker, CALL, seconds=5, limit=1000)).accepted
