"""The cards of running (simulated) engines, as the workers API shows them and their changes."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.control.workers_rows import CardEntry
from gateway.sim import SimConfig, SimServer
from tests.support.gateway import Rig, rig, until

GATE = "tool_call_structural_tag_reasoning_gate"


async def card_of(rigged: Rig, url: str, **query: str) -> dict[str, Any]:
    reply = await rigged.client.get(f"/workers/{url}/card", params=query)
    assert reply.status_code == 200
    return CardEntry.model_validate(reply.json()).model_dump()


@pytest.mark.parametrize(
    ("reported", "gate", "rejects"),
    [
        ({}, None, True),
        ({"reasoning_parser": "qwen3", "server_info_without": "skip_tokenizer_init"}, True, True),
        ({"reasoning_parser": "qwen3", "skip_tokenizer": True}, None, True),
        ({"reasoning_parser": "qwen3", "skip_tokenizer": False}, True, True),
        ({"allow_auto_truncate": True}, None, False),
    ],
    ids=["none", "parser", "parser without tokenizer", "parser with tokenizer", "truncates"],
)
async def test_gate_and_budget_follow_from_the_server_info(
    reported: dict[str, Any], gate: bool | None, rejects: bool
) -> None:
    """The five variants of the review of Dynamo's sidecar."""
    config = SimConfig(max_model_len=32768, model="m", **reported)
    async with SimServer("sglang", config) as sim, rig(sim.url) as rigged:
        shown = await card_of(rigged, sim.url, model="m")
        free, sources = shown["card"]["runtime_data"], shown["sources"]
        limit = {"combined_limit": 32768, "reject_prompt_overflow": rejects, "reject_total_overflow": rejects}
        assert (free.get(GATE), free["token_budget"]) == (gate, limit)
        assert (sources.get(GATE), sources["token_budget"]) == (gate and "engine", "engine")


async def test_card_of_a_model_that_the_worker_does_not_serve_is_a_404() -> None:
    async with SimServer("sglang") as sim, rig(sim.url) as rigged:
        reply = await rigged.client.get(f"/workers/{sim.url}/card", params={"model": "other"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


async def test_cards_of_one_model_that_differ_are_marked_and_counted() -> None:
    small, large = SimConfig(model="m", max_model_len=1024), SimConfig(model="m", max_model_len=2048)
    async with SimServer("sglang", small) as first, SimServer("sglang", large) as second:
        async with rig(first.url, second.url) as rigged:
            await until(lambda: all(worker.card_conflicts for worker in rigged.app.fleet.workers))
            rows = (await rigged.client.get("/workers")).json()["workers"]
            assert [row["card_conflicts"] for row in rows] == [["context_length"]] * 2
            metrics = (await rigged.client.get("/metrics")).text
            assert 'dynamo_frontend_model_card_conflicts{model="m"} 1' in metrics
