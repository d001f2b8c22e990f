"""The members of a card are read strictly, and written so that they are read as the same values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.cards.members import FREE_LIMIT, NAMES, read, write
from gateway.cards.structural_tag import OFF, StructuralTag
from gateway.cards.token_budget import TokenBudget
from gateway.cards.values import NOTHING, CardValues, KvEventSource

BUDGET = {"combined_limit": 32768, "reject_prompt_overflow": True, "reject_total_overflow": True}
GATE = "tool_call_structural_tag_reasoning_gate"
RANKS = {"data_parallel_start_rank": 0, "data_parallel_size": 2}
SOURCE = {"rank": 0, "endpoint": "tcp://*:5557", "topic": "kv", "replay_endpoint": "tcp://*:5558"}


@pytest.mark.parametrize(
    ("members", "values"),
    [
        ({}, NOTHING),
        (dict.fromkeys(NAMES - {name for name in NAMES if name.startswith("structural_tag")}), NOTHING),
        ({"url": "http://a:1", "cost": 1.5, "worker_type": "prefill"}, NOTHING),
        ({"context_length": 4096}, {"context_length": 4096}),
        (RANKS, RANKS),
        ({"enable_eagle": False}, {"enable_eagle": False}),
        ({"reasoning_parser": "qwen3"}, {"reasoning_parser": "qwen3"}),
        ({"token_budget": BUDGET}, {"token_budget": TokenBudget(32768, True, True)}),
        ({"runtime_data": {"token_budget": BUDGET}}, {"token_budget": TokenBudget(32768, True, True)}),
        (
            {"runtime_data": {GATE: True, "default_thinking_mode": "enabled"}},
            {GATE: True, "runtime_data": {"default_thinking_mode": "enabled"}},
        ),
        ({"structural_tag": None}, {"structural_tag": OFF}),
        ({"structural_tag": {"scope": "always"}}, {"structural_tag": StructuralTag(scope="always")}),
        ({"structural_tag_mode": "off"}, {"structural_tag": OFF}),
        (
            {"kv_event_sources": [SOURCE, {"rank": 1, "endpoint": "tcp://a:1", "topic": ""}]},
            {
                "kv_event_sources": (
                    KvEventSource(0, "tcp://*:5557", "kv", "tcp://*:5558"),
                    KvEventSource(1, "tcp://a:1"),
                )
            },
        ),
    ],
)
def test_members_are_read_and_written_back(members: dict[str, Any], values: Any) -> None:
    expected = values if isinstance(values, CardValues) else CardValues(**values)
    assert read(members) == expected
    assert read(write(expected)) == expected


@pytest.mark.parametrize(
    ("members", "fault"),
    [
        ({"context_length": "4096"}, "context_length must be an integer from 1"),
        ({"context_length": 0}, "context_length must be an integer from 1"),
        ({"max_num_seqs": True}, "max_num_seqs must be an integer"),
        ({"total_kv_blocks": 1 << 63}, "total_kv_blocks must be an integer"),
        ({"enable_eagle": 1}, "enable_eagle must be true or false"),
        ({"tool_call_parser": ""}, "tool_call_parser must be a printable text"),
        ({"reasoning_parser": "a\nb"}, "reasoning_parser must be a printable text"),
        ({"bootstrap_host": ["a"]}, "bootstrap_host must be a printable text"),
        ({"token_budget": 5}, "token_budget: must be an object"),
        ({"token_budget": {"combined_limit": -1}}, "token_budget: combined_limit: must be an integer"),
        ({"runtime_data": {"token_budget": {}}}, "token_budget: combined_limit: must be an integer"),
        ({"token_budget": BUDGET, "runtime_data": {"token_budget": BUDGET}}, "token_budget is given twice"),
        ({"runtime_data": []}, "runtime_data must be an object"),
        ({"runtime_data": {"note": "x" * FREE_LIMIT}}, "runtime_data must have at most"),
        ({"runtime_data": {"note": float("inf")}}, "runtime_data must have finite numbers"),
        (
            {"runtime_data": {"note": json.loads("[" * 32 + "]" * 32)}},
            "runtime_data must be nested in at most",
        ),
        ({"structural_tag": {"scope": None}}, "structural_tag: scope must be one of"),
        ({"kv_event_sources": {}}, "kv_event_sources must be a list"),
        ({"kv_event_sources": [SOURCE, 1]}, "kv_event_sources[1] must be an object"),
        ({"kv_event_sources": [{"rank": 0}]}, "kv_event_sources[0].endpoint is missing"),
        ({"kv_event_sources": [{"rank": 0, "endpoint": None}]}, "kv_event_sources[0].endpoint is missing"),
        ({"kv_event_sources": [{**SOURCE, "rank": None}]}, "kv_event_sources[0].rank is missing"),
        ({"kv_event_sources": [{**SOURCE, "port": 1}]}, "kv_event_sources[0].port: no such member"),
        ({"kv_event_sources": [{**SOURCE, "rank": -1}]}, "kv_event_sources[0].rank must be an integer"),
    ],
)
def test_member_at_fault_is_named(members: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(members)
    assert str(caught.value).startswith(fault)


def test_capabilities_and_what_belongs_there_are_written_into_the_free_map() -> None:
    values = CardValues(
        capabilities=("eng_generate",),
        weight_version="7",
        token_budget=TokenBudget(9),
        runtime_data={"spec_decode": {"nextn": 1}},
    )
    budget = {"combined_limit": 9, "reject_prompt_overflow": False, "reject_total_overflow": False}
    assert write(values) == {
        "weight_version": "7",
        "runtime_data": {"eng_generate": True, "token_budget": budget, "spec_decode": {"nextn": 1}},
    }
