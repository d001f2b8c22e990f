"""What an SGLang server says for its worker's card.

Owns: how the members of the card follow from its replies (SGLang 0.5.22 and older). Must never enter: whether
a server is one, what the gateway does with a card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.cards.structural_tag import ON, reported
from gateway.cards.values import CardValues, KvEventSource
from gateway.formats.sglang.token_budget import EAGLE, token_budget

#: The roles of servers, by ``disaggregation_mode``.
_ROLES = {"null": "regular", "prefill": "prefill", "decode": "decode"}
#: The largest number of ranks that is believed.
_MOST_RANKS = 1024

#: The engine compiles the grammars of tool calls itself.
DEFAULTS = CardValues(structural_tag=ON)


def card_values(
    info: Mapping[str, Any], model: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> CardValues:
    """Return what follows from the replies of ``/server_info``, ``/model_info`` and ``/v1/models``."""
    tokens, page = _count(info.get("max_total_num_tokens")), _count(info.get("page_size"))
    role = _ROLES.get(str(info.get("disaggregation_mode", model.get("disaggregation_mode"))))
    sources = _kv_event_sources(info.get("kv_events"))
    parser = text_of(model.get("reasoning_parser")) or text_of(info.get("reasoning_parser"))
    # Then the grammar of a request with require_reasoning waits in the engine until its reasoning has ended.
    gated = parser is not None and bool(info) and info.get("skip_tokenizer_init") is not True
    context_length = _context_length(entries, info)
    return CardValues(
        worker_type=role,
        context_length=context_length,
        kv_cache_block_size=None if page is None else page * (_count(info.get("dcp_size")) or 1),
        total_kv_blocks=None if tokens is None else -(-tokens // (page or 1)),
        max_num_seqs=_max_num_seqs(info),
        # Without a limit of its own, a batch may have as many tokens as there is room for.
        max_num_batched_tokens=_count(info.get("max_prefill_tokens")) or tokens,
        data_parallel_size=_ranks(info),
        max_gpu_lora_count=_count(info.get("max_loras_per_batch")) if info.get("enable_lora") else None,
        vocab_size=_count(info.get("vocab_size")) or _count(model.get("vocab_size")),
        weight_version=text_of(model.get("weight_version")) or text_of(info.get("weight_version")),
        tool_call_parser=text_of(model.get("tool_call_parser")) or text_of(info.get("tool_call_parser")),
        reasoning_parser=parser,
        enable_eagle=info["speculative_algorithm"] in EAGLE if "speculative_algorithm" in info else None,
        kv_event_publishing_enabled=bool(sources) if "kv_events" in info else None,
        kv_event_sources=sources or None,
        bootstrap_port=_count(info.get("disaggregation_bootstrap_port")) if role == "prefill" else None,
        token_budget=token_budget(info, context_length),
        structural_tag=reported(info),
        tool_call_structural_tag_reasoning_gate=True if gated else None,
    )


def _context_length(entries: Sequence[Mapping[str, Any]], info: Mapping[str, Any]) -> int | None:
    lengths = (*(entry.get("max_model_len") for entry in entries), info.get("context_length"))
    return next((length for length in map(_count, lengths) if length is not None), None)


def _max_num_seqs(info: Mapping[str, Any]) -> int | None:
    """Return how many requests one rank runs at once; with attention DP the ranks share the limit."""
    shared = _count(info.get("max_running_requests"))
    if shared is not None:
        return max(1, shared // _attention_ranks(info))
    states = info.get("internal_states")
    first = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    return _count(first.get("effective_max_running_requests_per_dp"))


def _attention_ranks(info: Mapping[str, Any]) -> int:
    """Return the size of attention DP; releases that do not report it have one size for both kinds of DP."""
    reported = _count(info.get("attn_dp_size"))
    older = _count(info.get("dp_size")) if info.get("enable_dp_attention") is True else None
    return reported or older or 1


def _ranks(info: Mapping[str, Any]) -> int | None:
    size = _count(info.get("dp_size"))
    return None if size is None else size * (_count(info.get("attn_dp_size")) or 1)


def _kv_event_sources(events: Any) -> tuple[KvEventSource, ...]:
    """Return where each rank publishes: at the port of the first one plus its number."""
    if not isinstance(events, dict):
        return ()
    host, port = text_of(events.get("endpoint_host")), _count(events.get("endpoint_port_base"))
    if host is None or port is None:
        return ()
    replay = _count(events.get("replay_endpoint_port_base"))
    at = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
    return tuple(
        KvEventSource(
            rank,
            endpoint=f"{at}:{port + rank}",
            topic=text_of(events.get("topic")) or "",
            replay_endpoint=None if replay is None else f"{at}:{replay + rank}",
        )
        for rank in range(min(_count(events.get("dp_size")) or 1, _MOST_RANKS))
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 63 else None


def text_of(value: Any) -> str | None:
    """Return ``value`` if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None
