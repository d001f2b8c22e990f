"""The join rules: how each key of a unary reply is made from the events of a stream.

Owns: the rule of every key of a reply. Must never enter: code that reads bytes.

Source: vLLM 0.33.0. What a stream does not carry cannot be joined: prompt logprobs and connector data are
left out of events without notice, so they are null in a joined reply whatever was requested, and so are
cached tokens unless a usage event named them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class MergeRule(Enum):
    """The way a key's value is made from those of the events. A null never replaces a value."""

    APPEND = "lists, one after another"
    TEXT = "strings, one after another"
    FIRST = "constant, or in the first event only"
    LAST = "the latest value; also of unknown keys"
    TERMINAL = "complete, in the event that finishes a sample, however long it is"
    COUNTED = "from the usage event, or else counted"
    NESTED = "an object with rules of its own"
    PER_INDEX = "one object for each sample, in the order of their indexes"
    GIVEN = "in no event: from the request, the worker and the reply's head"
    UNSTREAMED = "in no event, so null; if it comes after all, the latest value"


#: The rule of a key that is in no table.
DEFAULT = MergeRule.LAST

#: The top level, in the order of the unary reply, which has every key whether null or not.
REPLY: Mapping[str, MergeRule] = MappingProxyType(
    {
        "request_id": MergeRule.FIRST,
        "model": MergeRule.GIVEN,
        "created": MergeRule.GIVEN,
        "usage": MergeRule.COUNTED,
        "prompt_logprobs": MergeRule.UNSTREAMED,
        "prompt_token_id_logprobs": MergeRule.UNSTREAMED,
        "prompt_token_ids": MergeRule.FIRST,
        "mm_placeholders": MergeRule.FIRST,
        "metrics": MergeRule.LAST,
        "kv_transfer_params": MergeRule.UNSTREAMED,
        "ec_transfer_params": MergeRule.UNSTREAMED,
        "output_mode": MergeRule.FIRST,
        "choices": MergeRule.PER_INDEX,
    }
)

#: Unknown keys are written before this one: an engine adds new keys to those that all output modes share.
SHARED_END = "output_mode"

#: One sample. In a stream its keys have the order of the unary reply, so no order is kept here.
CHOICE: Mapping[str, MergeRule] = MappingProxyType(
    {
        "index": MergeRule.FIRST,
        "finish_reason": MergeRule.TERMINAL,
        "stop_reason": MergeRule.TERMINAL,
        "token_ids": MergeRule.APPEND,
        "routed_experts": MergeRule.TERMINAL,
        "sampling_mask": MergeRule.APPEND,
        "weight_versions": MergeRule.TERMINAL,
        "text": MergeRule.TEXT,
        "message": MergeRule.UNSTREAMED,
        "logprobs": MergeRule.NESTED,
    }
)

#: The keys of a sample's ``logprobs``.
LOGPROBS: Mapping[str, MergeRule] = MappingProxyType({"content": MergeRule.APPEND})

#: The keys of ``usage``, in the order of the unary reply.
USAGE = (
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
)

#: Keys that the usage event leaves out where they are null, and a unary reply does not.
WITH_NULLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "prompt_tokens_details": ("cached_tokens", "created_cache_tokens", "multimodal_tokens"),
        "completion_tokens_details": ("reasoning_tokens",),
        "metrics": (
            "time_to_first_token_ms",
            "generation_time_ms",
            "queue_time_ms",
            "mean_itl_ms",
            "tokens_per_second",
            "speculative_decoding",
        ),
    }
)
