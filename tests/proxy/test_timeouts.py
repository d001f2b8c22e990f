"""Time limits: the deadlines by themselves, and exchanges in a gateway that exceed them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.catalog import CatalogError
from gateway.errors import GatewayError
from gateway.limits import Timeouts
from gateway.proxy.deadlines import Deadlines
from gateway.settings import Settings
from gateway.sim import Pace, Reply, Silence, SimConfig, SimServer
from gateway.wiring.app import create_app
from tests.support.fleet import fleet
from tests.support.gateway import RawClient, all_released, generates, limit_hits, rig, sse, until
from tests.support.generate import JSON, KINDS, body_of

CHAT = "/v1/chat/completions"
SHORT = 0.1

pytestmark = pytest.mark.virtual_time


def deadlines_of(reasons: list[GatewayError], *, sent: bool = True, **limits: float) -> Deadlines:
    """Deadlines that put why they ended their exchange into ``reasons``; the request was sent."""
    deadlines = Deadlines(Timeouts()._replace(**limits), reasons.append)
    if sent:
        deadlines.worker_leased()
        deadlines.request_sent()
    return deadlines


@pytest.mark.parametrize("limit", ["first_byte", "idle", "total"])
async def test_deadline_expires_once_and_names_the_limit(limit: str) -> None:
    reasons: list[GatewayError] = []
    deadlines = deadlines_of(reasons, sent=True, **{limit: 30.0})
    if limit == "idle":
        deadlines.body_received()
        deadlines.awaiting_body()
    await asyncio.sleep(29)
    assert not reasons
    await asyncio.sleep(60)
    [reason] = reasons
    assert (reason.limit, reason.code, "30 s" in reason.message) == (limit, "upstream_timeout", True)


async def test_deadlines_on_a_worker_count_only_the_time_spent_waiting_for_it() -> None:
    """Not the time before the request is sent, nor the time its client takes to read."""
    reasons: list[GatewayError] = []
    deadlines = deadlines_of(reasons, sent=False, first_byte=20, idle=20)
    await asyncio.sleep(30)
    deadlines.worker_leased()
    deadlines.request_sent()
    deadlines.worker_released()
    await asyncio.sleep(30)
    deadlines.worker_leased()
    deadlines.request_sent()
    await asyncio.sleep(19)
    deadlines.body_received()
    await asyncio.sleep(30)
    deadlines.awaiting_body()
    await asyncio.sleep(19)
    assert not reasons
    await asyncio.sleep(2)
    assert [reason.limit for reason in reasons] == ["idle"]


async def test_stopped_deadlines_end_nothing() -> None:
    reasons: list[GatewayError] = []
    deadlines_of(reasons, first_byte=1, idle=1, total=1).stop()
    await asyncio.sleep(3)
    assert not reasons


async def test_total_deadline_names_what_the_exchange_waited_for() -> None:
    reasons: list[GatewayError] = []
    deadlines_of(reasons, sent=False, total=2)
    deadlines_of(reasons, total=3)
    deadlines_of(reasons, total=4).body_received()
    await asyncio.sleep(5)
    assert [reason.code for reason in reasons] == ["wait_timeout", "upstream_timeout", "reply_unread"]
    assert {reason.limit for reason in reasons} == {"total"}


@pytest.mark.parametrize(("given", "total"), [(1.0, 1.0), (9.0, 5.0)])
def test_client_can_only_shorten_a_configured_total(given: float, total: float) -> None:
    assert Timeouts(total=5.0).within(given).total == total
    assert Timeouts().within(given).total == given


@pytest.mark.parametrize("kind", KINDS)
async def test_worker_that_does_not_begin_is_a_504_with_an_abort_and_no_second_try(kind: str) -> None:
    async with fleet(kind, kind, config=SimConfig(), first_byte_timeout_secs=str(SHORT)) as of:
        gateway = of.gateway
        for sim in of.sims:
            sim.behave(Silence())
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert reply.status_code == 504
        assert "did not begin its reply" in reply.json()["error"]["message"]
        assert len(generates(*of.sims)) == 1
        await until(lambda: sum(len(sim.aborts) for sim in of.sims) == 1)
        assert all_released(gateway) and await limit_hits(gateway) == {"first_byte": 1}
        text = (await gateway.client.get("/metrics")).text
        assert 'status="error",error_type="response_timeout"} 1\n' in text


@pytest.mark.parametrize(
    ("limit", "pace"),
    [
        ("first_byte_timeout_secs", Pace(prefill_base=60.0)),
        ("idle_timeout_secs", Pace(stall_after=2)),
        ("request_timeout_secs", Pace(token_delay=0.01)),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_stream_that_hits_a_limit_says_so_in_band_and_is_aborted(
    kind: str, limit: str, pace: Pace
) -> None:
    """Even before its first event: the engine's 200 had left."""
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, **{limit: str(SHORT)}) as gateway:
        sim.behave(pace)
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 3000, True))
        events = sse(reply.content)
        assert (reply.status_code, "0.1 s" in json.dumps(events[-1]["error"])) == (200, True)
        assert reply.content.endswith(b"data: [DONE]\n\n")
        assert len(events) > 1 or limit == "first_byte_timeout_secs"
        await sim.abort_called(1)
        assert all_released(gateway) and sum((await limit_hits(gateway)).values()) == 1


async def test_client_that_does_not_read_makes_no_worker_idle() -> None:
    """The gateway does not wait for the worker then, the worker waits for it."""
    size = 40_000_000
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, idle_timeout_secs="0.05") as gateway:
        sim.behave(Reply(body=b'{"text":"' + b"a" * size + b'"}'))
        client = await RawClient.connect(gateway.port)
        transport: Any = client.writer.transport
        client.request("/generate", json.dumps(body_of("sglang")).encode())
        await client.head()
        transport.pause_reading()
        for _ in range(5):
            await asyncio.sleep(0.05)
        transport.resume_reading()
        async with asyncio.timeout(20):
            assert len(await client.reader.readexactly(size + 11)) == size + 11
        client.leave()
        assert await limit_hits(gateway) == {}


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e3", "ten", "1,5", "5s", "9" * 400, "."])
@pytest.mark.parametrize("kind", KINDS)
async def test_bad_timeout_of_a_client_is_a_400_in_its_dialect(kind: str, value: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        headers = {**JSON, "X-Request-Timeout": value}
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind), headers=headers)
        assert (reply.status_code, "X-Request-Timeout" in reply.json()["error"]["message"]) == (400, True)
        assert not generates(sim)


@pytest.mark.parametrize("asked", [False, True], ids=["configured", "asked for"])
@pytest.mark.parametrize("kind", KINDS)
async def test_time_that_is_over_in_line_is_no_fault_of_a_worker(
    kind: str, asked: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """The client, the log and the metrics report where the request was, and which limit it reached."""
    settings = {} if asked else {"request_timeout_secs": str(SHORT)}
    headers = {**JSON, "X-Request-Timeout": str(SHORT)} if asked else JSON
    async with rig(queue_seconds=20, access_log=True, **settings) as gateway:
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind), headers=headers)
        named = reply.json()["error"]["message"]
        assert (reply.status_code, "waited for a worker" in named) == (504, True)
        assert ("X-Request-Timeout" in named) is asked
        text = (await gateway.client.get("/metrics")).text
        assert 'failures_total{class="Timeout",reason="gateway.wait_timeout"} 1\n' in text
        assert "dynamo_frontend_held_requests 0\n" in text
        assert await limit_hits(gateway) == {"total": 1} and all_released(gateway)
    [line] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (line["error"], line["worker"], line["outcome"]) == ("wait_timeout", None, "failed")


async def test_relayed_route_has_a_limit_of_its_own() -> None:
    given = f"30,{CHAT}=0.1"
    async with SimServer("vllm", SimConfig()) as sim, rig(sim.url, request_timeout_secs=given) as gateway:
        sim.behave(Silence(), path=CHAT)
        reply = await gateway.client.post(CHAT, json={"messages": []})
        assert reply.status_code == 504
        assert reply.json()["error"]["type"] == "server_error"
        assert all_released(gateway)


def test_route_that_is_served_by_nobody_has_no_limit() -> None:
    with pytest.raises(CatalogError, match="DYN_IDLE_TIMEOUT_SECS: '/generat' is no inference route"):
        create_app(Settings(idle_timeout_secs="/generat=3"))  # type: ignore[arg-type]
