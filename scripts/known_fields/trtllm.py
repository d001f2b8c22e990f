"""Every field of the engine's request and reply, and what the gateway does with it.

Owns: the list, for the source it was read from (docs/trtllm.md). Must never enter: code on the path of a
request. The sources of an engine are compared with it (``scripts/engine_fields.py``), which shows what an
upgrade changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from gateway.formats.trtllm.join import CHOICE, LOGPROBS, REPLY, MergeRule


class Use(Enum):
    """The use of a field that is not joined by a rule."""

    READ = "read for routing or metrics, and left to the engine"
    SET = "set to false where the client left it out"
    PASSED = "left to the engine unread, or to the client"


def _passed(names: str) -> dict[str, Use]:
    return dict.fromkeys(names.split(), Use.PASSED)


def _read(names: str) -> dict[str, Use]:
    return dict.fromkeys(names.split(), Use.READ)


_REQUEST = {
    "detokenize": Use.SET,
    **_read("model prompt max_tokens n stream lora_request priority truncate_prompt_tokens"),
    **_passed("best_of echo frequency_penalty logit_bias logprobs presence_penalty seed stop stream_options"),
    **_passed("suffix temperature top_p user prompt_ignore_length use_beam_search top_k top_p_min min_p"),
    **_passed("repetition_penalty length_penalty early_stopping stop_token_ids include_stop_str_in_output"),
    **_passed("ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens"),
    **_passed("return_context_logits thinking_token_budget add_special_tokens"),
    **_passed("response_format disaggregated_params conversation_params"),
}

#: By group of fields, as ``fixtures/trtllm/fields.json`` has them.
FIELDS: Mapping[str, Mapping[str, Use | MergeRule]] = MappingProxyType(
    {
        "request": _REQUEST,
        "stream_options": _passed("include_usage continuous_usage_stats"),
        "reply": REPLY,
        "choice": CHOICE,
        "logprobs": LOGPROBS,
        "usage": {
            **dict.fromkeys(
                ("prompt_tokens", "completion_tokens", "prompt_tokens_details"), MergeRule.COUNTED
            ),
            "total_tokens": MergeRule.COMPUTED,
        },
        "prompt_usage": {"cached_tokens": MergeRule.COUNTED},
        "error": {"code": Use.READ, **_passed("object message type param")},
        "model": {"id": Use.READ, "owned_by": Use.READ, **_passed("object created")},
        "kv_event": _read("event_id data window_size attention_dp_rank"),
        "kv_created": _read("type num_blocks_per_cache_level"),
        "kv_stored": _read("type parent_hash blocks"),
        "kv_block": {**_read("block_hash tokens cache_level"), **_passed("type priority")},
        "kv_token": {**_read("token_id token_extra_id"), **_passed("type")},
        "kv_removed": _read("type block_hashes"),
    }
)
