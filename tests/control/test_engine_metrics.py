"""The metrics of all workers in one scrape, through a real gateway."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.control import engine_metrics
from gateway.control.exposition_merge import Merger
from gateway.fleet.states import WorkerState
from gateway.formats.base import BaseFormat
from gateway.sim import Reply, Silence, SimConfig
from tests.support.fleet import called, fleet
from tests.support.gateway import until

pytestmark = pytest.mark.virtual_time

METRICS = SimConfig(enable_metrics=True)


def ups(text: str) -> dict[str, float]:
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {sample.labels["worker"]: sample.value for sample in families[engine_metrics.UP].samples}


async def test_scrape_has_the_metrics_of_all_workers_by_name() -> None:
    async with fleet() as of:
        reply = await of.gateway.client.get("/engine_metrics")
        assert (reply.status_code, reply.content) == (200, b"")
    async with fleet("sglang", "vllm", config=METRICS) as of:
        reply = await of.gateway.client.get("/engine_metrics")
        assert reply.status_code == 200
        assert reply.headers["content-type"] == engine_metrics.CONTENT_TYPE
        assert ups(reply.text) == {sim.url: 1 for sim in of.sims}
        families = list(text_string_to_metric_families(reply.text))
        assert len({family.name for family in families}) == len(families)
        for sim, prefix in zip(of.sims, ("sglang:", "vllm:"), strict=True):
            samples = [s for f in families if f.name.startswith(prefix) for s in f.samples]
            assert samples and {sample.labels["worker"] for sample in samples} == {sim.url}


async def test_worker_that_is_dead_or_hangs_or_has_no_metrics_is_reported_as_down() -> None:
    async with fleet("sglang", "sglang", "sglang", "vllm", config=METRICS) as of:
        of.sims[0].behave(Reply(status=404), path="/metrics", times=100)
        of.sims[1].behave(Silence(), path="/metrics", times=100)
        await of.sims[2].kill()
        await until(lambda: of.worker(2).state is WorkerState.DEAD)
        text = (await of.gateway.client.get("/engine_metrics")).text
        assert [ups(text)[sim.url] for sim in of.sims] == [0, 0, 0, 1]


async def test_worker_is_scraped_where_its_format_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseFormat, "metrics", "/elsewhere")
    async with fleet("vllm") as of:
        of.sims[0].behave(Reply(body=b"a 1\n"), path="/elsewhere")
        before = len(called(of.sims[0], "/metrics"))
        reply = await of.gateway.client.get("/engine_metrics")
        assert f'a{{worker="{of.sims[0].url}"}} 1' in reply.text
        assert len(called(of.sims[0], "/metrics")) == before


async def test_large_scrapes_are_merged_in_slices() -> None:
    """Other tasks run after each slice."""
    lines = 20 * engine_metrics.SLICE
    scrape = b"".join(b'm_%d{a="b"} 1\n' % number for number in range(lines))
    turns = 0

    async def other_task() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with fleet("sglang", config=METRICS) as of:
        of.sims[0].behave(Reply(body=scrape, content_type="text/plain"), path="/metrics", times=100)
        reply = await of.gateway.client.get("/engine_metrics")
        assert reply.text.count("\n") > lines
        merger = Merger()
        task = asyncio.ensure_future(other_task())
        await engine_metrics._merge(merger, of.sims[0].url, scrape)
        task.cancel()
        assert turns >= lines / engine_metrics.SLICE
