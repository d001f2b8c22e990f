"""Every field of the engine's request and reply, and what the gateway does with it.

Owns: the list, for the release it was read from. Must never enter: code on the path of a request. The sources
of an installed engine are compared with it (``scripts/engine_fields.py``), which shows what an upgrade
changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from gateway.formats.vllm.join.rules import CHOICE, LOGPROBS, REPLY, USAGE, WITH_NULLS, MergeRule


class Use(Enum):
    """The use of a field that is not joined by a rule."""

    READ = "read for routing or metrics, and left to the engine"
    NAMES = "the client's name for the exchange"
    PASSED = "left to the engine unread, or to the client"


def _passed(names: str) -> dict[str, Use]:
    return dict.fromkeys(names.split(), Use.PASSED)


def _read(names: str) -> dict[str, Use]:
    return dict.fromkeys(names.split(), Use.READ)


_REQUEST = {
    "request_id": Use.NAMES,
    **_read("token_ids features sampling_params model stream cache_salt priority"),
    **_passed(
        "token_offsets content_parts reasoning_ended reasoning_parser_kwargs return_token_ids output_mode"
    ),
    **_passed("parse_context stream_options kv_transfer_params ec_transfer_params"),
}

_SAMPLING = {
    **_read("n max_tokens"),
    **_passed(
        "presence_penalty frequency_penalty repetition_penalty temperature watermarking top_p top_k min_p"
    ),
    **_passed(
        "seed stop stop_token_ids ignore_eos min_tokens logprobs prompt_logprobs prompt_logprob_token_ids"
    ),
    **_passed("prompt_logprob_start logprob_token_ids flat_logprobs detokenize skip_special_tokens"),
    **_passed(
        "spaces_between_special_tokens include_stop_str_in_output output_kind stream_interval skip_clone"
    ),
    **_passed(
        "output_text_buffer_length structured_outputs logit_bias allowed_token_ids extra_args bad_words"
    ),
    **_passed("skip_reading_prefix_cache thinking_token_budget repetition_detection"),
    **_passed("routed_experts_prompt_start trace_decode_token_ids"),
}

#: By group of fields, as ``fixtures/vllm/fields.json`` has them.
FIELDS: Mapping[str, Mapping[str, Use | MergeRule]] = MappingProxyType(
    {
        "request": _REQUEST,
        "sampling": _SAMPLING,
        "stream_options": _passed("include_usage continuous_usage_stats"),
        "features": _read("mm_hashes mm_placeholders kwargs_data mm_metadata"),
        "placeholder": _read("offset length"),
        "reply": REPLY,
        "choice": CHOICE,
        "logprobs": LOGPROBS,
        "logprob": _passed("token_id logprob rank top_logprobs"),
        "usage": dict.fromkeys(USAGE, MergeRule.COUNTED),
        "prompt_usage": dict.fromkeys(WITH_NULLS["prompt_tokens_details"], MergeRule.COUNTED),
        "completion_usage": dict.fromkeys(WITH_NULLS["completion_tokens_details"], MergeRule.COUNTED),
        "weight_versions": _passed("version start end"),
        "metrics": dict.fromkeys(WITH_NULLS["metrics"], Use.PASSED),
        "error": {"code": Use.READ, **_passed("message type param")},
    }
)
