"""What a card says about grammars for tool calls: by default, and as far as an engine reports it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.cards.structural_tag import OFF, ON, StructuralTag
from gateway.cards.values import CardValues
from gateway.fleet.card import Card, CardSource
from gateway.formats.base import AnyFormat
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.sglang.card import card_values
from gateway.formats.trtllm import FORMAT as TRTLLM
from gateway.formats.vllm import FORMAT as VLLM
from gateway.formats.vllm import card as vllm
from gateway.formats.worker_contract import WorkerInfo
from gateway.settings import load_settings
from gateway.sim import SimConfig, SimServer
from gateway.wiring.cards import card_builder
from tests.support.gateway import rig


async def card_of(kind: str, config: SimConfig) -> CardValues:
    async with SimServer(kind, config) as sim, rig(sim.url) as gateway:
        [worker] = gateway.app.fleet.workers
        return worker.infos[kind].card


@pytest.mark.parametrize(
    ("format", "unset"),
    [(SGLANG, ON), (VLLM, OFF), (TRTLLM, OFF)],
    ids=lambda each: getattr(each, "name", ""),
)
def test_policy_is_that_of_the_flag_or_else_the_default_of_the_format(
    format: AnyFormat, unset: StructuralTag
) -> None:
    """The flag of `serve` is for all workers, that of `workers add` for one, whatever `serve` has."""

    def policy(everywhere: str | None, here: str | None = None) -> tuple[StructuralTag | None, str]:
        builder = card_builder(load_settings({"dyn_structural_tag": everywhere}), [format])
        of_record = CardValues(structural_tag=None if here is None else StructuralTag.parse(here))
        infos = {format.name: WorkerInfo("", format.capability, usable=True)}
        card = builder.build(Card(), (CardSource.REGISTRATION, of_record), infos)
        return card.values.structural_tag, card.sources["structural_tag"]

    assert policy(None) == (unset, "default")
    for text, found in (("true", ON), ("false", OFF), ('{"scope":"auto"}', replace(ON, scope="auto"))):
        assert policy(text) == (found, "setting")
        for everywhere in (None, "true", "false", '{"schema":"strict"}'):
            assert policy(everywhere, text) == (found, "registration")


@pytest.mark.parametrize("policy", [OFF, ON, replace(ON, scope="auto", exclude_special_tokens=False)])
@pytest.mark.parametrize(("kind", "silent"), [("sglang", None), ("vllm", OFF)])
async def test_simulated_engine_reports_its_own_policy_which_is_off_by_default(
    kind: str, silent: StructuralTag | None, policy: StructuralTag
) -> None:
    """Off is the default of vLLM's format, so that a simulated one need not say it."""
    assert SimConfig().dyn_structural_tag == OFF
    card = await card_of(kind, SimConfig(dyn_structural_tag=policy))
    assert (card.structural_tag or silent) == policy


async def test_one_worker_is_excepted_by_its_registration() -> None:
    config = SimConfig(server_info_without="structural_tag")  # as a real engine
    async with SimServer("sglang", config) as one, SimServer("sglang", config) as other:
        async with rig(one.url, dyn_structural_tag=replace(ON, schema="strict")) as gateway:
            body = {"url": other.url, "structural_tag": None}
            assert (await gateway.client.post("/workers", json=body)).status_code == 202
            rows = (await gateway.client.get("/workers")).json()["workers"]
            cards = {row["url"]: row["card"] for row in rows}
        assert cards[one.url]["structural_tag"]["schema"] == "strict"
        names = ("structural_tag", "structural_tag_mode")
        assert [cards[other.url][name] for name in names] == [None, "off"]


#: The options of a server, and what its card then has.
REPORTED: dict[str, tuple[dict[str, Any], bool | None]] = {
    "no parser": ({"server_info_without": "skip_tokenizer_init"}, None),
    "a parser": ({"reasoning_parser": "qwen3", "server_info_without": "skip_tokenizer_init"}, True),
    "a parser, no tokenizer": ({"reasoning_parser": "qwen3", "skip_tokenizer": True}, None),
    "a parser and a tokenizer": ({"reasoning_parser": "qwen3", "skip_tokenizer": False}, True),
    "truncation": ({"allow_auto_truncate": True}, None),
}


@pytest.mark.parametrize("case", REPORTED)
async def test_sglang_gates_grammars_with_a_reasoning_parser_and_a_tokenizer(case: str) -> None:
    options, gate = REPORTED[case]
    card = await card_of("sglang", SimConfig(max_model_len=32768, **options))
    assert card.tool_call_structural_tag_reasoning_gate is gate
    assert card.tool_call_structural_tag_excludes_reasoning is None


@pytest.mark.parametrize(
    ("options", "excludes"),
    [({"reasoning_parser": "qwen3"}, True), ({}, False), ({"dev_mode": False}, None)],
)
async def test_vllm_excludes_reasoning_from_grammars_with_a_reasoning_parser(
    options: dict[str, Any], excludes: bool | None
) -> None:
    """It says so in development mode only."""
    card = await card_of("vllm", SimConfig(**options))
    assert card.tool_call_structural_tag_excludes_reasoning is excludes
    assert card.tool_call_structural_tag_reasoning_gate is None


def test_vllm_with_grammars_in_the_reasoning_does_not_exclude_it() -> None:
    grammars = {"reasoning_parser": "qwen3", "enable_in_reasoning": True}
    card = vllm.card_values([], {"structured_outputs_config": grammars}, b"", None, {})
    assert card.tool_call_structural_tag_excludes_reasoning is False


def test_reasoning_parser_may_be_in_the_description_of_the_model() -> None:
    assert (
        card_values(
            {"page_size": 1}, {"reasoning_parser": "qwen3"}, []
        ).tool_call_structural_tag_reasoning_gate
        is True
    )
    assert card_values({"reasoning_parser": ""}, {}, []).tool_call_structural_tag_reasoning_gate is None


@pytest.mark.parametrize("policy", ["on", {"scope": "sometimes"}, {"x": 1}])
def test_policy_that_is_none_is_not_taken_from_an_engine(policy: Any) -> None:
    assert card_values({"structural_tag": policy}, {}, []).structural_tag is None
