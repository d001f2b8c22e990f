"""Requests with one key stay on one worker, in a complete gateway. (Which: routing/test_rendezvous.py)"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from gateway.fleet.states import WorkerState
from gateway.routing.policy import POLICIES
from gateway.sim import Reply, SimServer
from tests.support.fleet import fleet
from tests.support.gateway import Rig, until
from tests.support.generate import KINDS, body_of

CHAT = "/v1/chat/completions"
KEY, SESSION = "X-SMG-Routing-Key", "X-Session-ID"
#: So many that not all have the same home, whatever the ports of the engines.
KEYS = [f"key-{number}" for number in range(32)]


async def turn(gateway: Rig, kind: str, header: str, key: str) -> None:
    reply = await gateway.client.post(KINDS[kind], json=body_of(kind), headers={header: key})
    assert reply.status_code == 200, reply.text


def homes(sims: Sequence[SimServer], *headers: str) -> dict[str, SimServer]:
    """Where the requests of each key are, which must all be on one engine."""
    found: dict[str, SimServer] = {}
    for sim in sims:
        for key in {arrival.header(header) for arrival in sim.all_requests for header in headers} - {None}:
            assert key is not None and key not in found, f"{key} is on two engines"
            found[key] = sim
    return found


async def placements(gateway: Rig) -> dict[str, int]:
    text = (await gateway.client.get("/metrics")).text
    found = [line for line in text.splitlines() if line.startswith("dynamo_frontend_keyed_requests_total{")]
    return {line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in found}


@pytest.mark.parametrize("mode", POLICIES)
async def test_turns_of_a_session_meet_on_one_worker_in_every_mode(mode: str) -> None:
    """One after another and all at once, and under either header."""
    async with fleet("vllm", "vllm", "vllm", router_mode=mode) as of:
        for header in (SESSION, KEY.lower()):
            turns = [turn(of.gateway, "vllm", header, f"{header}-{key}") for key in KEYS for _ in range(2)]
            await asyncio.gather(*turns)
        found = homes(of.sims, SESSION, KEY)
        assert len(found) == 2 * len(KEYS)
        assert set(Counter(sim.url for sim in found.values())) == {sim.url for sim in of.sims}
        assert await placements(of.gateway) == {"home": 4 * len(KEYS)}


@pytest.mark.parametrize("kind", KINDS)
async def test_key_has_one_home_on_every_data_route(kind: str) -> None:
    async with fleet(kind, kind) as of:
        for sim in of.sims:
            for path in (CHAT, "/v1/completions", "/tokenize"):
                sim.behave(Reply(), path=path, times=len(KEYS))
        for key in KEYS:
            await turn(of.gateway, kind, SESSION, key)
            for path in (CHAT, "/v1/completions", "/tokenize"):
                await of.gateway.client.post(path, content=b"{}", headers={SESSION: key})
        assert len(homes(of.sims, SESSION)) == len(KEYS)


async def test_keys_of_a_worker_that_died_settle_on_others_and_stay_there() -> None:
    """At the first try, though nobody had noticed; the keys of others do not move; and back at its return."""
    async with fleet("sglang", "sglang", "sglang", probe_interval_secs=0.1) as of:
        for key in KEYS:
            await turn(of.gateway, "sglang", KEY, key)
        before = homes(of.sims, KEY)
        dead = of.sims[0]
        await dead.kill()
        for _ in range(3):
            for key in KEYS:
                await turn(of.gateway, "sglang", KEY, key)
        after = homes(of.sims[1:], KEY)
        assert set(after) == set(KEYS)
        assert all(after[key] is sim for key, sim in before.items() if sim is not dead)
        moved = sum(sim is dead for sim in before.values())
        assert (await placements(of.gateway))["unavailable"] == 3 * moved
        await dead.start()
        await until(lambda: of.worker(0).state is WorkerState.READY)
        for key in KEYS:
            await turn(of.gateway, "sglang", KEY, key)
        assert {arrival.header(KEY) for arrival in dead.log} - {None} == {
            key for key, sim in before.items() if sim is dead
        }
