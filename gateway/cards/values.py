"""What one source says about a worker.

Owns: the members of a card and their types. Must never enter: which source counts, a dialect, reading JSON.

The members have the names of Dynamo's ``runtime_config`` and ``runtime_data``; docs/worker-cards.md says what
each means and who reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.cards.structural_tag import StructuralTag
from gateway.cards.token_budget import TokenBudget


@dataclass(frozen=True, slots=True)
class KvEventSource:
    """Where one data-parallel rank publishes its KV events: ZMQ endpoints, and the topic.

    The host ``*`` in an endpoint is the host of the worker's URL. ``replay_endpoint`` is None if lost events
    cannot be asked for.
    """

    rank: int
    endpoint: str
    topic: str = ""
    replay_endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class CardValues:
    """What one source says about a worker; None for a member means that it says nothing about it.

    Capacities are those of one data-parallel rank. ``capabilities`` are the keys of the native endpoints that
    the worker serves.
    """

    capabilities: tuple[str, ...] | None = None
    worker_type: str | None = None
    context_length: int | None = None
    kv_cache_block_size: int | None = None
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    data_parallel_start_rank: int | None = None
    data_parallel_size: int | None = None
    max_gpu_lora_count: int | None = None
    vocab_size: int | None = None
    weight_version: str | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    structural_tag: StructuralTag | None = None
    exclude_tools_when_tool_choice_none: bool | None = None
    enable_eagle: bool | None = None
    kv_event_publishing_enabled: bool | None = None
    kv_event_sources: tuple[KvEventSource, ...] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    token_budget: TokenBudget | None = None
    tool_call_structural_tag_reasoning_gate: bool | None = None
    tool_call_structural_tag_excludes_reasoning: bool | None = None
    #: The other keys of ``runtime_data``, which are shown only.
    runtime_data: Mapping[str, Any] | None = field(default=None, hash=False)


#: A source that says nothing.
NOTHING = CardValues()
