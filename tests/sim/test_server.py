"""The simulated engine within the process of a test."""

from __future__ import annotations

import asyncio

import pytest

from gateway.sim import SimConfig, SimServer
from tests.sim.calls import begin, control, generate


async def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'trt' is not one of sglang, trtllm, vllm"):
        SimServer("trt")


async def test_stopped_server_starts_again_on_its_port() -> None:
    sim = SimServer("sglang")
    await sim.start()
    port = sim.port
    await generate(sim)
    await sim.stop()
    with pytest.raises(ConnectionRefusedError):
        await generate(sim)
    await sim.start()
    assert (sim.port, len(sim.log)) == (port, 0)
    assert (await generate(sim)).status == 200
    await sim.stop()


async def test_fixed_port_is_used_and_an_error_if_taken() -> None:
    async with SimServer("vllm") as sim:
        with pytest.raises(OSError, match="in use"):
            await SimServer("vllm", SimConfig(port=sim.port)).start()


async def test_stop_ends_streams_in_flight_and_forgets_them() -> None:
    async with SimServer("vllm", SimConfig(max_model_len=10**6)) as sim:
        client = await begin(sim, 10**6 - 10, stream=True)
        await sim.streaming()
        async with asyncio.timeout(5):
            await sim.stop()
        assert not sim.running and not sim.connections
        client.leave()


async def test_waiting_names_the_request_it_happened_to() -> None:
    """The n-th, also when it happened before; health checks do not count."""
    async with SimServer("sglang", SimConfig(fast_health=True)) as sim:
        await control(sim, "/health", "GET")
        late = asyncio.ensure_future(sim.arrived(2))
        await generate(sim, rid="one")
        assert not late.done()
        await generate(sim, rid="two")
        assert (await late).ids == ["two"]
        assert (await sim.arrived(1)).ids == (await sim.finished(1)).ids == ["one"]
        assert len(sim.log) == 2 and len(sim.all_requests) == 3


async def test_log_keeps_only_so_many() -> None:
    """Counting goes on; asking for a forgotten one is an error that says why."""
    async with SimServer("sglang", SimConfig(log_limit=2)) as sim:
        for _ in range(4):
            await generate(sim)
        assert len(sim.log) == 2
        await sim.finished(3)
        with pytest.raises(LookupError, match="log_limit"):
            await sim.finished(2)


async def test_log_and_counts_are_served_over_http() -> None:
    """For tests that run the engine in another process."""
    async with SimServer("vllm") as sim:
        await generate(sim, headers=[("X-A", "b")])
        rows = (await control(sim, "/_sim/log", "GET")).json
        stats = (await control(sim, "/_sim/stats", "GET")).json
    assert rows[0]["status"] == 200 and ["X-A", "b"] in rows[0]["headers"]
    assert (stats["arrived"], stats["finished"], stats["running"]) == (1, 1, 0)


async def test_ipv6_address_is_bracketed_in_the_url() -> None:
    try:
        async with SimServer("sglang", SimConfig(host="::1")) as sim:
            assert sim.url == f"http://[::1]:{sim.port}"
    except OSError:
        pytest.skip("no IPv6 on this machine")
