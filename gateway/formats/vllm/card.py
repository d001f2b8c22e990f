"""What a vLLM server says for its worker's card.

Owns: how the members of the card follow from its replies (vLLM 0.33.0). Must never enter: whether a server is
one, what the gateway does with a card.

Every server reports its models, its cache (as labels of a metric) and where it publishes KV events. The other
settings are known in development mode only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.cards.structural_tag import OFF, reported
from gateway.cards.token_budget import MOST_TOKENS, TokenBudget
from gateway.cards.values import CardValues, KvEventSource

#: The key of the endpoint on a card.
CAPABILITY_KEY = "vllm_inference_v1_generate"

_CACHE_ROW = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\} ", re.MULTILINE)
_LABEL = re.compile(rb'([a-z_]+)="([0-9]+)"')

#: Its own front end in Rust gives every grammar to a backend that knows only an older form of these, so that
#: every request with tools would fail.
DEFAULTS = CardValues(structural_tag=OFF)


def card_values(
    models: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    metrics: bytes,
    kv_events: Mapping[str, Any] | None,
    weights: Mapping[str, Any],
) -> CardValues:
    """Return what follows from the replies of ``/v1/models``, ``/server_info`` (the ``vllm_config``),
    ``/metrics``, ``/kv_event_sources`` (None: no reply) and ``/weight_info``.
    """
    engines = [dict(_LABEL.findall(row)) for row in _CACHE_ROW.findall(metrics)]
    cache = _Section(config, "cache_config")
    scheduler = _Section(config, "scheduler_config")
    ranks = _Section(config, "parallel_config").count("data_parallel_size") or len(engines) or None
    blocks = _label(engines, b"num_gpu_blocks") or cache.count("num_gpu_blocks")
    sources = tuple(_kv_event_sources(kv_events or {}))
    sizes = [model.get("vocab_size") for model in models if not model.get("parent")]
    # Adapters are listed after their base model, some without a length of their own.
    length = next((length for model in models if (length := _length(model)) is not None), None)
    version = weights.get("weight_version")
    return CardValues(
        context_length=length,
        kv_cache_block_size=_label(engines, b"block_size") or cache.count("block_size"),
        # The blocks of all engines behind the server, each of which is a rank.
        total_kv_blocks=None if blocks is None else max(1, blocks // (len(engines) or ranks or 1)),
        max_num_seqs=scheduler.count("max_num_seqs"),
        max_num_batched_tokens=scheduler.count("max_num_batched_tokens"),
        data_parallel_size=ranks,
        max_gpu_lora_count=_Section(config, "lora_config").count("max_loras"),
        vocab_size=next((size for size in sizes if type(size) is int and size > 0), None),
        weight_version=version if isinstance(version, str) and version else None,
        reasoning_parser=_Section(config, "structured_outputs_config").text("reasoning_parser"),
        kv_event_publishing_enabled=None if kv_events is None else bool(sources),
        kv_event_sources=sources or None,
        token_budget=_budget(length),
        structural_tag=reported(models[0]) if models else None,
        tool_call_structural_tag_excludes_reasoning=_excludes_reasoning(
            config.get("structured_outputs_config")
        ),
    )


def _length(model: Mapping[str, Any]) -> int | None:
    length = model.get("max_model_len")
    return length if type(length) is int and 0 < length <= MOST_TOKENS else None


def model_cards(models: Sequence[Mapping[str, Any]]) -> dict[str, CardValues]:
    """Return what a server that lists models of several lengths says of those unlike the first one."""
    lengths = {
        name: length
        for model in models
        if isinstance(name := model.get("id"), str) and (length := _length(model)) is not None
    }
    first = next(iter(lengths.values()), None)
    return {
        name: CardValues(context_length=length, token_budget=_budget(length))
        for name, length in lengths.items()
        if length != first
    }


def _budget(length: int | None) -> TokenBudget | None:
    return None if length is None else TokenBudget(length, True, True)


def _excludes_reasoning(grammars: Any) -> bool | None:
    """Return True if the engine applies grammars after the reasoning only; None if it does not say."""
    if not isinstance(grammars, dict):
        return None
    return bool(grammars.get("reasoning_parser")) and grammars.get("enable_in_reasoning") is not True


class _Section:
    """One object of the configuration, of which any member may be missing or of another type."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        found = config.get(name)
        self._members = found if isinstance(found, dict) else {}

    def count(self, name: str) -> int | None:
        value = self._members.get(name)
        return value if type(value) is int and 0 < value < 1 << 63 else None

    def text(self, name: str) -> str | None:
        value = self._members.get(name)
        return value if isinstance(value, str) and value else None


def _label(engines: Sequence[Mapping[bytes, bytes]], name: bytes) -> int | None:
    text = engines[0].get(name, b"0") if engines else b"0"
    return int(text) or None if len(text) < 19 else None


def _kv_event_sources(by_rank: Mapping[str, Any]) -> Iterator[KvEventSource]:
    for rank, source in by_rank.items():
        if not (rank.isdecimal() and len(rank) < 5 and isinstance(source, dict)):
            continue
        endpoint, topic, replay = (source.get(name) for name in ("endpoint", "topic", "replay_endpoint"))
        if source.get("publisher") == "zmq" and isinstance(endpoint, str) and endpoint:
            yield KvEventSource(
                int(rank),
                endpoint=endpoint,
                topic=topic if isinstance(topic, str) else "",
                replay_endpoint=replay if isinstance(replay, str) and replay else None,
            )
