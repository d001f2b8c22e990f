"""What no worker has room for is refused before any of them sees it; the rest goes where there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest

from gateway.sim import Reply, SimConfig, SimServer
from tests.support.gateway import Rig, arrived, generates, queued, rig, until
from tests.support.generate import KINDS, LIMIT, PROMPT

CONTEXT = 32
both = pytest.mark.parametrize("kind", KINDS)


def body_of(kind: str, prompt: int, reply: int | None, **members: Any) -> dict[str, Any]:
    limit = {} if reply is None else {LIMIT[kind]: reply}
    return {PROMPT[kind]: [7] * prompt, "sampling_params": {"temperature": 0, **limit}, **members}


def post(gateway: Rig, kind: str, *length: int | None, **members: Any) -> Coroutine[Any, Any, httpx.Response]:
    prompt, reply = length
    assert prompt is not None
    return gateway.client.post(KINDS[kind], json=body_of(kind, prompt, reply, **members))


def sim_of(kind: str, context: int = CONTEXT, **options: Any) -> SimServer:
    return SimServer(kind, SimConfig(max_model_len=context, **options))


@both
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(
    ("prompt", "reply", "actual"),
    [(32, 1, 32), (33, None, 33), (31, 2, 33), (20, 13, 33)],
    ids=["no-room", "over", "one-more", "total"],
)
async def test_what_no_worker_has_room_for_is_a_400_with_numbers_and_reaches_none(
    kind: str, stream: bool, prompt: int, reply: int | None, actual: int
) -> None:
    async with sim_of(kind) as small, sim_of(kind, 8) as smaller, rig(small.url, smaller.url) as gateway:
        refused = await post(gateway, kind, prompt, reply, stream=stream)
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
        error = refused.json()["error"]
        assert (error["kind"], error["limit"], error["actual"]) == ("context_length", CONTEXT, actual)
        numbers = [CONTEXT, prompt, *([] if actual == prompt else [reply])]
        assert all(str(number) in error["message"] for number in numbers)
        assert not generates(small, smaller)
        metrics = (await gateway.client.get("/metrics")).text
        assert 'error_type="context_length"} 1\n' in metrics


@both
async def test_refusal_has_the_words_and_the_shape_of_the_engine(kind: str) -> None:
    async with sim_of(kind) as sim, rig(sim.url) as gateway:
        for length in ((32, 1), (33, 1), *([(20, 13)] if kind == "sglang" else [])):
            body = body_of(kind, *length)
            refused = (await gateway.client.post(KINDS[kind], json=body)).json()["error"]
            own = (await gateway.client.post(sim.url + KINDS[kind], json=body)).json()["error"]
            assert own.items() <= refused.items()
            assert refused.keys() - own.keys() == {"kind", "limit", "actual"}


@both
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("length", [(31, None), (31, 1), (20, 12), (1, 31)])
async def test_what_fills_the_context_exactly_is_served(
    kind: str, stream: bool, length: tuple[int, int | None]
) -> None:
    async with sim_of(kind) as sim, rig(sim.url) as gateway:
        served = await post(gateway, kind, *length, stream=stream)
        assert served.status_code == 200 and b"error" not in served.content


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_prompts_of_a_batch_are_judged_one_by_one_and_texts_by_the_engine(stream: bool) -> None:
    async with sim_of("sglang") as sim, rig(sim.url) as gateway:
        for members, status, sent in (
            ({"input_ids": [[7] * 20] * 3}, 200, 1),
            ({"input_ids": [[7] * 20, [7] * 33]}, 400, 1),
            ({"input_ids": [[7], [7] * 20], "sampling_params": [{LIMIT["sglang"]: 31}, {}]}, 200, 2),
            ({"input_ids": [[7], [7] * 20], "sampling_params": [{LIMIT["sglang"]: 32}, {}]}, 400, 2),
            ({"text": "word " * 200}, 200 if stream else 400, 3),
        ):
            reply = await gateway.client.post("/generate", json={**members, "stream": stream})
            assert (reply.status_code, len(generates(sim))) == (status, sent), reply.text


@both
@pytest.mark.parametrize("keyed", [False, True], ids=["no-key", "keys"])
async def test_request_goes_to_a_worker_that_has_room(kind: str, keyed: bool) -> None:
    async with sim_of(kind) as small, sim_of(kind, 64) as large, rig(small.url, large.url) as gateway:
        for number in range(12):
            gateway.client.headers["x-dynamo-session-id"] = f"s{number}" if keyed else ""
            assert (await post(gateway, kind, 40, 1)).status_code == 200
        assert (len(generates(small)), len(generates(large))) == (0, 12)


@both
async def test_request_waits_for_the_worker_that_has_room(kind: str) -> None:
    """While the other one is free; what none has room for does not wait behind it."""
    async with (
        sim_of(kind) as small,
        sim_of(kind, 64) as large,
        rig(small.url, large.url, max_in_flight_per_worker=1) as gateway,
    ):
        large.behave(Reply(delay=1000))
        running = asyncio.ensure_future(post(gateway, kind, 40, 1))
        await arrived(1, large)
        waiting = asyncio.ensure_future(post(gateway, kind, 41, 1))
        await queued(gateway, 1)
        assert (await post(gateway, kind, 70, 1)).status_code == 400
        running.cancel()
        assert (await waiting).status_code == 200
        assert not generates(small)


@both
async def test_worker_that_joins_and_is_too_small_leaves_a_request_in_the_queue(kind: str) -> None:
    async with (
        sim_of(kind) as small,
        sim_of(kind, 64) as large,
        rig(large.url, queue_seconds=30) as gateway,
    ):
        [worker] = gateway.app.fleet.workers
        await gateway.client.post(f"/workers/{worker.id}/cordon")
        waiting = asyncio.ensure_future(post(gateway, kind, 40, 1))
        await queued(gateway, 1)
        await gateway.client.post("/workers", json={"url": small.url})
        assert (await post(gateway, kind, 4, 1)).status_code == 200
        await queued(gateway, 1)
        await gateway.client.post(f"/workers/{worker.id}/uncordon")
        assert (await waiting).status_code == 200
        assert (len(generates(small)), len(generates(large))) == (1, 1)


@both
async def test_queued_request_goes_to_a_worker_whose_card_gives_it_room_now(kind: str) -> None:
    async with (
        sim_of(kind) as small,
        sim_of(kind, 64) as large,
        rig(small.url, large.url, queue_seconds=30) as gateway,
    ):
        await gateway.client.post(f"/workers/{large.url}/cordon")
        waiting = asyncio.ensure_future(post(gateway, kind, 20, 20))
        await queued(gateway, 1)
        await gateway.client.post("/workers", json={"url": small.url, "token_budget": {"combined_limit": 64}})
        await waiting
        assert (len(generates(small)), len(generates(large))) == (1, 0)


async def test_engine_that_truncates_gets_what_is_too_long() -> None:
    async with sim_of("sglang", allow_auto_truncate=True) as sim, rig(sim.url) as gateway:
        assert (await post(gateway, "sglang", CONTEXT, 1)).status_code == 200


@both
async def test_budget_of_a_registration_counts_before_that_of_the_engine(kind: str) -> None:
    async with sim_of(kind, 64) as sim, rig() as gateway:
        for budget, sent in (
            ({"combined_limit": 8, "reject_total_overflow": True}, [True, True, False]),
            ({"combined_limit": 8, "reject_prompt_overflow": True}, [True, False, True]),
            (None, [True, True, True]),
        ):
            await gateway.client.post("/workers", json={"url": sim.url, "token_budget": budget})
            await until(lambda: bool(gateway.app.fleet.usable(f"{kind}_generate")))
            replies = [await post(gateway, kind, *length) for length in ((7, 1), (8, 1), (7, 2))]
            assert [reply.status_code == 200 for reply in replies] == sent
