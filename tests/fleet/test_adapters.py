"""LoRA adapters: which workers have one, and how soon the gateway knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.sim import Reply, SimConfig, SimServer
from tests.support.fleet import Fleet, called, fleet
from tests.support.gateway import arrived, generates, rig, until
from tests.support.generate import KINDS, body_of

CHAT = "/v1/chat/completions"
LOAD = {"sglang": "/load_lora_adapter", "vllm": "/v1/load_lora_adapter"}
UNLOAD = {"sglang": "/unload_lora_adapter", "vllm": "/v1/unload_lora_adapter"}
#: No describing probe falls due by itself in the time of a test.
SLOW = 1000.0
#: Seconds between two probes where they matter.
INTERVAL = 2.0


def lora(name: str) -> dict[str, str]:
    return {"lora_name": name, "lora_path": f"/ckpt/{name}"}


@asynccontextmanager
async def two_of(kind: str, **settings: Any) -> AsyncIterator[Fleet]:
    config = SimConfig(enable_lora=True, model="base")
    async with fleet(kind, kind, config=config, probe_interval_secs=SLOW, **settings) as of:
        yield of


async def load_directly(sim: SimServer, name: str) -> None:
    async with httpx.AsyncClient(base_url=sim.url, trust_env=False) as engine:
        assert (await engine.post(LOAD[sim.kind], json=lora(name))).status_code == 200


@pytest.mark.parametrize("kind", KINDS)
async def test_adapter_is_known_when_the_call_that_loaded_it_is_answered(kind: str) -> None:
    async with two_of(kind) as of:
        reply = await of.post(LOAD[kind], json=lora("a1"), headers={"x-worker-id": of.sims[0].url})
        assert reply.status_code == 200, reply.text
        for _ in range(8):
            assert (await of.post(KINDS[kind], json=body_of(kind, model="a1"))).status_code == 200
        assert [len(generates(sim)) for sim in of.sims] == [8, 0]
        assert (
            await of.post(UNLOAD[kind], json=lora("a1"), headers={"x-worker-id": of.sims[0].url})
        ).is_success
        assert not any("a1" in info.models for info in of.worker().infos.values())


async def test_adapter_named_by_lora_path_chooses_the_workers_that_have_it() -> None:
    async with two_of("sglang") as of:
        await of.post(LOAD["sglang"], json=lora("a1"), headers={"x-worker-id": of.sims[1].url})
        for body in (body_of("sglang", lora_path="a1"), body_of("sglang", lora_path="a1", model="base")):
            for _ in range(4):
                reply = await of.post("/generate", json=body)
                assert reply.status_code == 200, reply.text
        assert [len(generates(sim)) for sim in of.sims] == [0, 8]


@pytest.mark.parametrize("kind", KINDS)
async def test_unknown_model_is_asked_for_once_before_it_is_refused(kind: str) -> None:
    """The adapter was loaded on the engine directly; another worker serves another base model.
    A relayed route is no exception.
    """
    config = SimConfig(enable_lora=True, model="judge")
    async with two_of(kind) as of, SimServer(kind, config) as judge:
        await of.post("/workers", json={"url": judge.url})
        await until(lambda: of.gateway.app.fleet.workers[2].usable)
        await load_directly(of.sims[0], "a1")
        assert (await of.post(KINDS[kind], json=body_of(kind, model="a1"))).status_code == 200
        assert len(generates(of.sims[0])) == 1
        await load_directly(of.sims[1], "a2")
        of.sims[1].behave(Reply(body=b"{}"), path=CHAT)
        assert (await of.post(CHAT, json={"model": "a2"})).status_code == 200
        assert len(called(of.sims[1], CHAT)) == 1
        before = len(of.sims[0].all_requests)
        refused = await of.post(KINDS[kind], json=body_of(kind, model="nobody's"))
        assert refused.status_code == 404
        assert len(of.sims[0].all_requests) > before


@pytest.mark.virtual_time
async def test_requests_for_unknown_models_share_rounds_of_questions() -> None:
    config = SimConfig(model="judge")
    async with SimServer("vllm", SimConfig(model="base")) as base, SimServer("vllm", config) as judge:
        async with rig(base.url, judge.url, probe_interval_secs=SLOW) as gateway:
            before = len(base.all_requests)
            body = body_of("vllm", model="nobody's")
            posts = [gateway.client.post(KINDS["vllm"], json=body) for _ in range(50)]
            assert {reply.status_code for reply in await asyncio.gather(*posts)} == {404}
            asked = [arrival.target for arrival in base.all_requests[before:]]
            assert 1 <= asked.count(b"/version") <= 2


@pytest.mark.parametrize("kind", KINDS)
async def test_models_are_listed_as_their_engine_lists_them(kind: str) -> None:
    """Every member, of the base model and of an adapter that one worker has, in the list and one by one."""
    async with two_of(kind) as of:
        sim, client = of.sims[1], of.gateway.client
        await client.post(LOAD[kind], json=lora("a"), headers={"x-worker-id": sim.url})
        async with httpx.AsyncClient(base_url=sim.url) as engine:
            own = {card["id"]: card for card in (await engine.get("/v1/models")).json()["data"]}
        listed = (await client.get("/v1/models")).json()["data"]
        assert sorted(card["id"] for card in listed) == sorted(own) == ["a", "base"]
        for card in listed:
            expected = {**own[card["id"]], "created": card["created"], "max_model_len": 8192}
            dated = {"permission", "context_window"}
            assert {k: v for k, v in card.items() if k not in dated} == {
                k: v for k, v in {"parent": None, **expected}.items() if k not in dated
            }
            assert isinstance(card["permission"], list)
            assert (await client.get(f"/v1/models/{card['id']}")).json() == card
        assert {card["id"]: card["parent"] for card in listed} == {"base": None, "a": "base"}


async def test_sglang_that_calls_itself_by_the_path_of_new_weights_keeps_its_entry() -> None:
    async with two_of("sglang") as of:
        await of.post("/update_weights_from_disk", json={"model_path": "/ckpt/new"})
        (card,) = (await of.gateway.client.get("/v1/models")).json()["data"]
        assert (card["id"], card["root"]) == ("base", "/ckpt/new")


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_restarted_engine_has_no_old_adapters_after_one_interval(kind: str) -> None:
    """No probe, request or call noticed that it was away."""
    async with SimServer(kind, SimConfig(enable_lora=True, model="base", dev_mode=False)) as sim:
        async with rig(sim.url, probe_interval_secs=INTERVAL) as gateway:
            (worker,) = gateway.app.fleet.workers
            await gateway.client.post(LOAD[kind], json=lora("a1"))
            await asyncio.sleep(2 * INTERVAL)
            assert adapters_of(worker) == ("a1",)
            await restart(sim)
            await until(lambda: not adapters_of(worker), 1.2 * INTERVAL)
            assert worker.state is WorkerState.READY


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_worker_whose_reply_broke_is_ready_only_after_it_was_asked_what_it_serves(kind: str) -> None:
    """The reply may have broken because another process, with another model, serves its URL now."""
    async with SimServer(kind, SimConfig(model="base", token_delay=1.0, dev_mode=False)) as sim:
        async with rig(sim.url, probe_interval_secs=SLOW) as gateway:
            (worker,) = gateway.app.fleet.workers
            running = asyncio.ensure_future(gateway.client.post(KINDS[kind], json=body_of(kind, 10)))
            await arrived(1, sim)
            sim.config = SimConfig(model="new", dev_mode=False)
            await restart(sim)
            assert (await running).status_code == 502
            await until(lambda: worker.state is not WorkerState.READY)
            await until(lambda: worker.state is WorkerState.READY)
            assert [info.models for info in worker.infos.values()] == [("new",)]


def adapters_of(worker: Worker) -> tuple[str, ...]:
    return tuple(name for info in worker.infos.values() for name in info.adapters)


async def restart(sim: SimServer) -> None:
    await sim.kill()
    await sim.start()
