"""What processes of one gateway know of its workers together: real processes, real sockets."""

from __future__ import annotations

import json
import os
import signal

import pytest

from gateway.sim import SimConfig, SimServer
from tests.prefork.running import Several, ask, several
from tests.support.gateway import eventually, generates
from tests.support.generate import body_of

REQUEST = json.dumps(body_of("sglang", 2, False)).encode()


async def states(gateway: Several) -> list[list[str]]:
    """Those of all workers, as each process has them."""
    replies = [json.loads((await gateway.get("/workers", pid))[1]) for pid in gateway.pids]
    return [[worker["state"] for worker in one["workers"]] for one in replies]


async def generated(gateway: Several) -> list[int]:
    """What each process answers to a request now."""
    clients = [await gateway.client_of(pid) for pid in gateway.pids]
    return [(await ask(client, "/generate", REQUEST, "POST"))[0] for client in clients]


async def post(gateway: Several, path: str, number: int = 0, body: bytes = b"{}") -> int:
    client = await gateway.client_of(gateway.pids[number])
    return (await ask(client, path, body, "POST"))[0]


async def test_ready_says_that_every_process_has_a_worker() -> None:
    """Whichever gets the next connection."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url, count=4) as gateway:
        assert await generated(gateway) == [200] * 4


async def test_pause_through_one_process_counts_in_all_before_it_is_answered() -> None:
    """And a resumption, through whichever."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url, count=3) as gateway:
        assert await post(gateway, "/pause_generation", 0) == 200
        assert await states(gateway) == [["held"]] * 3
        assert await generated(gateway) == [503] * 3
        assert not generates(sim)
        assert await post(gateway, "/continue_generation", 1) == 200
        assert await generated(gateway) == [200] * 3


async def test_no_process_gives_a_worker_a_request_after_it_was_called_to_pause() -> None:
    """All have stopped before the engine hears of it."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url, count=2) as gateway:
        clients = [await gateway.client_of(pid) for pid in gateway.pids]
        for round in range(10):
            await post(gateway, "/pause_generation", round % 2)
            for client in clients:
                assert (await ask(client, "/generate", REQUEST, "POST"))[0] == 503
            await post(gateway, "/continue_generation", round % 2)
            for client in clients:
                assert (await ask(client, "/generate", REQUEST, "POST"))[0] == 200
        assert len(generates(sim)) == 20


async def test_process_that_is_started_again_knows_who_is_paused() -> None:
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url) as gateway:
        victim, _ = gateway.pids
        assert await post(gateway, "/pause_generation", 1) == 200
        os.kill(victim, signal.SIGKILL)

        async def replaced() -> bool:
            return victim not in gateway.pids and len(gateway.pids) == 2

        await eventually(replaced)
        assert await generated(gateway) == [503, 503]
        assert await states(gateway) == [["held"]] * 2
        assert not generates(sim)


async def test_process_that_starts_in_the_midst_of_pauses_ends_as_the_others_do() -> None:
    """It is told what was said before it, and meanwhile what is said: the last word counts in all of them."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url) as gateway:
        for round in range(4):
            stays, victim = gateway.pids
            client = await gateway.client_of(stays)
            os.kill(victim, signal.SIGKILL)
            pause = True
            while victim in gateway.pids or len(gateway.pids) < 2 or pause is bool(round % 2):
                path = "/pause_generation" if pause else "/continue_generation"
                assert (await ask(client, path, b"{}", "POST"))[0] == 200
                pause = not pause
            # The new one is asked once it serves: until then it may have to be told.
            assert await generated(gateway) == [200 if pause else 503] * 2, round
            assert await states(gateway) == [["ready" if pause else "held"]] * 2


@pytest.mark.parametrize("end", ["open", "drain"])
async def test_worker_given_at_the_start_is_held_opened_and_drained_in_all_processes(end: str) -> None:
    """At once, and a process that is started later does as well."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url, count=2) as gateway:
        assert await post(gateway, f"/workers/{sim.url}/cordon", 0) == 200
        assert await states(gateway) == [["held"]] * 2
        assert await post(gateway, f"/workers/{sim.url}/{end}", 1) in (200, 202)
        victim = gateway.pids[0]
        os.kill(victim, signal.SIGKILL)

        async def replaced() -> bool:
            return victim not in gateway.pids and len(gateway.pids) == 2

        await eventually(replaced)
        if end == "open":
            assert await generated(gateway) == [200] * 2
            return
        assert await states(gateway) == [[]] * 2
        added = json.dumps({"url": sim.url}).encode()
        assert await post(gateway, "/workers", 1, added) == 202

        async def back() -> bool:
            return await states(gateway) == [["ready"]] * 2

        await eventually(back)


async def test_engine_that_was_started_anew_is_paused_no_more() -> None:
    """Neither in the process that was called, nor in the others."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url) as gateway:
        assert await post(gateway, "/pause_generation", 0) == 200
        port = int(sim.url.rpartition(":")[2])
        await sim.kill()

        async def dead() -> bool:
            return await states(gateway) == [["dead"]] * 2

        await eventually(dead, 20)
        async with SimServer("sglang", SimConfig(port=port)):

            async def ready() -> bool:
                return await states(gateway) == [["ready"]] * 2

            await eventually(ready, 20)
