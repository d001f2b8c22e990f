"""Why a worker is not usable, as an operator is told without asking for it."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from gateway.sim import SimConfig, SimServer
from tests.support.gateway import rig, until
from tests.support.processes import free_port
from tests.support.scripted import scripted

pytestmark = pytest.mark.virtual_time


async def test_reason_of_a_worker_that_never_joins_is_logged_once_and_counted_in_the_readiness(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    web = scripted(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
    async with SimServer("sglang", SimConfig(api_key="k")) as locked, web as server, rig() as gateway:
        nobody = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
        for url in (*nobody, "http://nowhere.invalid:1", locked.url, server.url):
            await gateway.client.post("/workers", json={"url": url})
        workers = gateway.app.fleet.workers
        await until(lambda: all("not probed" not in worker.reason for worker in workers))
        for _ in range(3):
            reply = await gateway.client.get("/ready")
            assert reply.status_code == 503
            assert reply.json()["unusable"] == Counter(worker.reason for worker in workers)
        text = "; ".join(worker.reason for worker in workers)
        for part in ("nothing listens", "it needs an API key", "does not speak"):
            assert part in text
    logged = [line for line in caplog.messages if "is not usable" in line]
    assert sorted(logged) == sorted(f"worker {each.url} is not usable: {each.reason}" for each in workers)
    ended = [line for line in caplog.messages if "was not usable until the end" in line]
    assert len(ended) == len(workers)


async def test_changed_reason_is_logged_but_not_in_quick_succession(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    replies = [b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status for status in (401, 404)]
    async with scripted(*replies) as server, rig(probe_interval_secs=1) as gateway:
        await gateway.client.post("/workers", json={"url": server.url})
        seen: set[str] = set()

        def changed(times: int) -> bool:
            seen.add(gateway.app.fleet.workers[0].reason)
            return len(server.heads) >= times

        await until(lambda: changed(60), 600)
        logged = [line for line in caplog.messages if "is not usable" in line]
        assert len(logged) <= 10
