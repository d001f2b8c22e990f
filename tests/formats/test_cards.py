"""What each engine says for its worker's card, derived from its replies as Dynamo's sidecars do it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cards.token_budget import TokenBudget
from gateway.cards.values import CardValues, KvEventSource
from gateway.formats.sglang import card as sglang
from gateway.formats.sglang.token_budget import EAGLE
from gateway.formats.vllm import card as vllm

SOURCES = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv", "dp_size": 2}


@pytest.mark.parametrize(
    ("info", "reported"),
    [
        ({}, {}),
        ({"max_total_num_tokens": 1001, "page_size": 16}, {"total_kv_blocks": 63, "kv_cache_block_size": 16}),
        ({"max_total_num_tokens": 1001, "page_size": 1}, {"total_kv_blocks": 1001, "kv_cache_block_size": 1}),
        ({"max_total_num_tokens": 1001}, {"total_kv_blocks": 1001}),
        ({"page_size": 16, "dcp_size": 4}, {"kv_cache_block_size": 64}),
        # The whole pool is what a batch may have where no limit is set.
        ({"max_total_num_tokens": 900}, {"max_num_batched_tokens": 900}),
        ({"max_total_num_tokens": 900, "max_prefill_tokens": 70}, {"max_num_batched_tokens": 70}),
        ({"max_running_requests": 64}, {"max_num_seqs": 64}),
        ({"max_running_requests": 64, "dp_size": 4}, {"max_num_seqs": 64, "data_parallel_size": 4}),
        (
            {"max_running_requests": 64, "dp_size": 4, "enable_dp_attention": True},
            {"max_num_seqs": 16, "data_parallel_size": 4},
        ),
        (
            {"max_running_requests": 65, "dp_size": 1, "attn_dp_size": 8, "enable_dp_attention": True},
            {"max_num_seqs": 8, "data_parallel_size": 8},
        ),
        ({"max_running_requests": 3, "attn_dp_size": 8}, {"max_num_seqs": 1}),
        ({"internal_states": [{"effective_max_running_requests_per_dp": 8}]}, {"max_num_seqs": 8}),
        ({"max_total_num_tokens": "9", "page_size": 0, "internal_states": [1]}, {}),
        ({"max_total_num_tokens": -1, "page_size": True, "max_prefill_tokens": 1 << 70}, {}),
        ({"enable_lora": True, "max_loras_per_batch": 8}, {"max_gpu_lora_count": 8}),
        ({"enable_lora": None, "max_loras_per_batch": 8}, {}),
        *(({"speculative_algorithm": name}, {"enable_eagle": True}) for name in EAGLE),
        *(({"speculative_algorithm": name}, {"enable_eagle": False}) for name in (None, "NGRAM", ["EAGLE"])),
        ({"disaggregation_mode": "null", "disaggregation_bootstrap_port": 8998}, {"worker_type": "regular"}),
        (
            {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998},
            {"worker_type": "prefill", "bootstrap_port": 8998},
        ),
        ({"disaggregation_mode": "decode"}, {"worker_type": "decode"}),
        ({"tool_call_parser": "hermes", "reasoning_parser": ""}, {"tool_call_parser": "hermes"}),
        ({"kv_events": None}, {"kv_event_publishing_enabled": False}),
        ({"kv_events": {"endpoint_host": "*"}}, {"kv_event_publishing_enabled": False}),
        (
            {"kv_events": {**SOURCES, "replay_endpoint_port_base": 6000}},
            {
                "kv_event_publishing_enabled": True,
                "kv_event_sources": (
                    KvEventSource(0, "tcp://*:5557", "kv", "tcp://*:6000"),
                    KvEventSource(1, "tcp://*:5558", "kv", "tcp://*:6001"),
                ),
            },
        ),
        (
            {"kv_events": {"endpoint_host": "::", "endpoint_port_base": 5557}},
            {
                "kv_event_publishing_enabled": True,
                "kv_event_sources": (KvEventSource(0, "tcp://[::]:5557"),),
            },
        ),
    ],
)
def test_card_of_a_server_of_sglang(info: dict[str, Any], reported: dict[str, Any]) -> None:
    found = sglang.card_values(info, {}, ())
    names = reported or ("total_kv_blocks", "kv_cache_block_size", "max_num_seqs", "max_gpu_lora_count")
    assert {name: getattr(found, name) for name in names} == (reported or dict.fromkeys(names))


TREE = {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4, "speculative_num_steps": 3}
DRAFTS = TREE | {"speculative_num_draft_tokens": 16}


@pytest.mark.parametrize(
    ("settings", "budget"),
    [
        ({}, (32768, True, True)),
        ({"allow_auto_truncate": True}, (32768, False, False)),
        ({"allow_auto_truncate": None}, None),  # like a release that does not report it
        ({"speculative_algorithm": "NGRAM"} | {"speculative_num_draft_tokens": 16}, (32768, True, True)),
        *((DRAFTS | {"speculative_algorithm": name}, (32752, True, True)) for name in EAGLE),
        (DRAFTS | {"speculative_num_steps": 5}, (32748, True, True)),
        (DRAFTS | {"allow_auto_truncate": True}, (32752, False, False)),
        (DRAFTS | {"speculative_adaptive": True}, None),
        (DRAFTS | {"speculative_num_steps": -5, "speculative_num_draft_tokens": -1}, None),
        (TREE, None),  # an unknown reserve
        (DRAFTS | {"context_length": 16}, (0, True, True)),
        (DRAFTS | {"context_length": 15}, None),
        ({"context_length": None}, None),
        ({"context_length": 2**32}, None),
    ],
)
def test_token_budget_of_sglang_is_its_context_less_the_reserve_for_drafts(
    settings: dict[str, Any], budget: tuple[int, bool, bool] | None
) -> None:
    """None with a reserve over the context: the choice of Dynamo's sidecar, as is all of this table."""
    usual = {"context_length": 32768, "allow_auto_truncate": False, "speculative_algorithm": None}
    found = sglang.card_values(usual | settings, {}, ()).token_budget
    assert found == (None if budget is None else TokenBudget(*budget))


ROW = 'vllm:cache_config_info{block_size="%s",cache_dtype="auto",engine="%d",num_gpu_blocks="%s"} 1.0\n'


def rows(engines: int, blocks: object, block: object = 16) -> bytes:
    return "".join(ROW % (block, engine, blocks) for engine in range(engines)).encode()


@pytest.mark.parametrize(
    ("metrics", "config", "reported"),
    [
        (b"", {}, CardValues()),
        (
            rows(1, 1001),
            {},
            CardValues(total_kv_blocks=1001, kv_cache_block_size=16, data_parallel_size=1),
        ),
        # The engines' blocks are counted together; a rank has its share of them, at least one.
        (rows(4, 1003), {}, CardValues(total_kv_blocks=250, kv_cache_block_size=16, data_parallel_size=4)),
        (rows(4, 3), {}, CardValues(total_kv_blocks=1, kv_cache_block_size=16, data_parallel_size=4)),
        (rows(1, "None", "None"), {}, CardValues(data_parallel_size=1)),
        (
            b"",
            {
                "cache_config": {"block_size": 32, "num_gpu_blocks": 101},
                "parallel_config": {"data_parallel_size": 2},
                "scheduler_config": {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
                "lora_config": {"max_loras": 4},
                "structured_outputs_config": {"reasoning_parser": "qwen3"},
            },
            CardValues(
                total_kv_blocks=50,
                kv_cache_block_size=32,
                data_parallel_size=2,
                max_num_seqs=256,
                max_num_batched_tokens=8192,
                max_gpu_lora_count=4,
                reasoning_parser="qwen3",
                tool_call_structural_tag_excludes_reasoning=True,
            ),
        ),
        (
            b"",
            {"cache_config": [], "lora_config": None, "structured_outputs_config": {"reasoning_parser": ""}},
            CardValues(tool_call_structural_tag_excludes_reasoning=False),
        ),
    ],
)
def test_card_of_a_server_of_vllm(metrics: bytes, config: dict[str, Any], reported: CardValues) -> None:
    assert vllm.card_values((), config, metrics, None, {}) == reported


def test_model_of_another_length_than_the_first_has_a_card_of_its_own() -> None:
    """Adapters have no length of their own."""
    lengths = {"base": 2048, "alias": 2048, "adapter": None, "short": 512, "odd": "9"}
    models = [{"id": name, "max_model_len": length} for name, length in lengths.items()]
    assert vllm.model_cards(models) == {
        "short": CardValues(context_length=512, token_budget=TokenBudget(512, True, True))
    }


@pytest.mark.parametrize(
    ("reply", "enabled", "sources"),
    [
        (None, None, None),
        ({}, False, None),
        ({"0": {"publisher": "null", "endpoint": "tcp://*:5557"}, "x": {}, "1": 7}, False, None),
        (
            {"1": {"publisher": "zmq", "endpoint": "tcp://*:5558", "replay_endpoint": None, "topic": "kv"}},
            True,
            (KvEventSource(1, "tcp://*:5558", "kv"),),
        ),
    ],
)
def test_sources_of_kv_events_are_those_that_vllm_lists(
    reply: dict[str, Any] | None, enabled: bool | None, sources: tuple[KvEventSource, ...] | None
) -> None:
    found = vllm.card_values((), {}, b"", reply, {})
    assert (found.kv_event_publishing_enabled, found.kv_event_sources) == (enabled, sources)
