"""What the processes of one gateway know of each other's workers, with real processes and sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack

import pytest

from gateway.sim import Reply, SimConfig, SimServer
from tests.prefork.running import Several, ask, generate, several
from tests.support.fleet import called
from tests.support.gateway import RawClient, eventually, generates, until
from tests.support.generate import KINDS

LORA_CALLS = {
    "sglang": ("/load_lora_adapter", "/unload_lora_adapter"),
    "vllm": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
}


async def states_at(*clients: RawClient) -> list[list[str]]:
    """Return the states of all workers, as each of the clients' processes reports them."""
    replies = [json.loads((await ask(client, "/workers"))[1]) for client in clients]
    return [[worker["state"] for worker in one["workers"]] for one in replies]


async def states(gateway: Several) -> list[list[str]]:
    return await states_at(*[await gateway.client_of(pid) for pid in gateway.pids])


async def has_states(gateway: Several, expected: list[list[str]]) -> bool:
    return await states(gateway) == expected


async def generated(gateway: Several) -> list[int]:
    """Return the status of one request to each process."""
    clients = [await gateway.client_of(pid) for pid in gateway.pids]
    return [await generate(client) for client in clients]


async def post(gateway: Several, path: str, number: int = 0, body: bytes = b"{}") -> int:
    client = await gateway.client_of(gateway.pids[number])
    return (await ask(client, path, body, "POST"))[0]


async def test_every_process_knows_which_worker_created_a_response() -> None:
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer("vllm", SimConfig())) for _ in range(4)]
        gateway = await stack.enter_async_context(several(*(sim.url for sim in sims), count=2))
        for sim in sims:
            sim.behave(Reply(body=b'{"id":"resp_1"}'), path="/v1/responses")
        assert await post(gateway, "/v1/responses") == 200

        async def always_asks_the_creator() -> bool:
            before = [len(called(sim, "/v1/responses/resp_1")) for sim in sims]
            client = await gateway.client_of(gateway.pids[1])
            for _ in range(8):
                await ask(client, "/v1/responses/resp_1")
            counts = [len(called(sim, "/v1/responses/resp_1")) for sim in sims]
            created = [len(called(sim, "/v1/responses")) for sim in sims]
            return [8 * count for count in created] == [a - b for a, b in zip(counts, before, strict=True)]

        await eventually(always_asks_the_creator)


async def test_no_process_sends_a_request_once_a_pause_is_answered() -> None:
    """All stop before the engine is called. Any can resume; at the same time as a pause, all end alike."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url, count=2) as gateway:
        clients = [await gateway.client_of(pid) for pid in gateway.pids]
        for round in range(10):
            await post(gateway, "/pause_generation", round % 2)
            assert await states_at(*clients) == [["held"]] * 2
            assert [await generate(client) for client in clients] == [503] * 2
            await post(gateway, "/continue_generation", (round + 1) % 2)
            assert [await generate(client) for client in clients] == [200] * 2
        for _ in range(20):
            pause, resume = zip(clients, ("/pause_generation", "/continue_generation"), strict=True)
            await asyncio.gather(ask(*pause, b"{}", "POST"), ask(*resume, b"{}", "POST"))
            first, second = await states_at(*clients)
            assert first == second
        assert len(generates(sim)) == 20


async def test_process_that_starts_during_pauses_ends_with_the_same_cordons() -> None:
    """It gets the cordons from before and the updates meanwhile; the latest one counts in all processes."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url) as gateway:
        for round in range(2):
            stays, victim = gateway.pids
            client = await gateway.client_of(stays)
            os.kill(victim, signal.SIGKILL)
            pause = True
            while victim in gateway.pids or len(gateway.pids) < 2 or pause is bool(round % 2):
                path = "/pause_generation" if pause else "/continue_generation"
                assert (await ask(client, path, b"{}", "POST"))[0] == 200
                pause = not pause
            # The new process may still probe its worker, or get updates.
            expected = [["ready" if pause else "held"]] * 2
            await eventually(lambda expected=expected: has_states(gateway, expected), 30)  # type: ignore[misc]
            assert await generated(gateway) == [200 if pause else 503] * 2, round


@pytest.mark.parametrize("end", ["open", "drain"])
async def test_worker_is_cordoned_uncordoned_and_drained_in_all_processes(end: str) -> None:
    """A worker given at the start; also in a process that is started later."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url, count=2) as gateway:
        assert await post(gateway, f"/workers/{sim.url}/cordon", 0) == 200
        assert await states(gateway) == [["held"]] * 2
        assert await post(gateway, f"/workers/{sim.url}/{end}", 1) in (200, 202)
        victim = gateway.pids[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: victim not in gateway.pids and len(gateway.pids) == 2, 30)
        if end == "open":
            await eventually(lambda: has_states(gateway, [["ready"]] * 2), 30)
            assert await generated(gateway) == [200] * 2
            return
        assert await states(gateway) == [[]] * 2
        added = json.dumps({"url": sim.url}).encode()
        assert await post(gateway, "/workers", 1, added) == 202
        await eventually(lambda: has_states(gateway, [["ready"]] * 2), 30)


async def test_restarted_engine_is_not_paused_any_more_in_any_process() -> None:
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url) as gateway:
        assert await post(gateway, "/pause_generation", 0) == 200
        port = int(sim.url.rpartition(":")[2])
        await sim.kill()
        await eventually(lambda: has_states(gateway, [["dead"]] * 2), 30)
        async with SimServer("sglang", SimConfig(port=port)):
            await eventually(lambda: has_states(gateway, [["ready"]] * 2), 30)


@pytest.mark.parametrize("kind", KINDS)
async def test_adapter_is_known_in_all_processes_when_the_call_that_changed_it_is_answered(kind: str) -> None:
    """Loaded and unloaded through either process. No probe that asks for it falls due by itself meanwhile."""
    config = SimConfig(enable_lora=True, model="base")
    async with SimServer(kind, config) as sim, several(sim.url, DYN_PROBE_INTERVAL_SECS="1000") as gateway:
        clients = [await gateway.client_of(pid) for pid in gateway.pids]
        for number in (0, 1):
            adapter = {"lora_name": f"a{number}", "lora_path": f"/ckpt/a{number}"}
            for path, status in zip(LORA_CALLS[kind], (True, False), strict=True):
                assert await post(gateway, path, number, json.dumps(adapter).encode()) == 200
                for client in clients:
                    models = json.loads((await ask(client, "/v1/models"))[1])["data"]
                    assert (f"a{number}" in {model["id"] for model in models}) is status


async def test_request_that_killed_workers_of_two_processes_is_refused_by_all_also_by_later_ones() -> None:
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer("sglang", SimConfig(tokens=4))) for _ in range(4)]
        gateway = await stack.enter_async_context(several(*(sim.url for sim in sims)))
        deadly = {"input_ids": [1, 40_000]}
        for deaths, pid in enumerate(gateway.pids, 1):
            assert await generate(await gateway.client_of(pid), **deadly) == 502
            await eventually(lambda deaths=deaths: _dead(gateway, deaths), 30)  # type: ignore[misc]
        for _ in range(2):
            for pid in gateway.pids:
                assert await generate(await gateway.client_of(pid), **deadly) == 422
                assert await generate(await gateway.client_of(pid)) == 200
            victim = gateway.pids[0]
            os.kill(victim, signal.SIGKILL)
            await until(lambda victim=victim: victim not in gateway.pids and len(gateway.pids) == 2, 30)  # type: ignore[misc]
        assert sum(b"40000" in arrival.body for sim in sims for arrival in sim.log) == 2


async def _dead(gateway: Several, count: int) -> bool:
    """Whether every process has found this number of workers dead."""
    return all(one.count("dead") == count for one in await states(gateway))
