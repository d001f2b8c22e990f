"""Every field of the engine's request and reply, and what the gateway does with it.

Owns: the list, for the release it was read from. Must never enter: code on the path of a request. The sources
of an installed engine are compared with it (``scripts/engine_fields.py``), which shows what an upgrade
changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from gateway.formats.sglang.join.rules import META, TOP, MergeRule


class Use(Enum):
    """The use of a field that is not joined by a rule."""

    READ = "read for routing, safety or metrics, and left to the engine"
    NAMES = "the client's name for the exchange"
    RESERVED = "set by the router, and refused from clients"
    PASSED = "left to the engine unread, or to the client"
    ELSEWHERE = "of another route of the same frontend"


def _uses(use: Use, names: str) -> dict[str, Use]:
    return dict.fromkeys(names.split(), use)


_REQUEST: dict[str, Use] = {
    "rid": Use.NAMES,
    **_uses(Use.READ, "text input_ids input_embeds image_data video_data audio_data"),
    **_uses(Use.READ, "sampling_params stream session_params priority cache_salt lora_path"),
    **_uses(Use.READ, "routed_dp_rank data_parallel_rank"),
    # Lists of the wrong length for a batch crash the engine's handler.
    **_uses(Use.READ, "return_logprob logprob_start_len top_logprobs_num"),
    **_uses(Use.PASSED, "return_sampling_mask sampling_logprobs_mode lora_id custom_logit_processor"),
    **_uses(Use.RESERVED, "bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key decode_tp_size"),
    **_uses(Use.RESERVED, "disagg_prefill_dp_rank external_trace_header received_time"),
    **_uses(Use.PASSED, "session_id mm_hashes mm_content_hashes use_audio_in_video video_config watermark"),
    # Compared with the size of the vocabulary, if that is known.
    **_uses(Use.READ, "token_ids_logprob"),
    **_uses(Use.PASSED, "return_text_in_logprobs return_flat_raw_top_logprobs"),
    **_uses(Use.PASSED, "return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 log_metrics"),
    **_uses(Use.PASSED, "return_hidden_states return_routed_experts routed_experts_start_len"),
    **_uses(Use.PASSED, "return_indexer_topk modalities positional_embed_overrides routing_key"),
    **_uses(Use.PASSED, "conversation_id http_worker_ipc background require_reasoning max_thinking_tokens"),
    **_uses(Use.PASSED, "extra_key no_logs custom_labels return_bytes return_entropy"),
    **_uses(Use.PASSED, "return_prompt_token_ids need_wait_for_mm_inputs num_items_assigned encoder_urls"),
    **_uses(Use.PASSED, "max_dynamic_patch min_dynamic_patch image_max_dynamic_patch"),
    **_uses(Use.PASSED, "video_max_dynamic_patch images_config multi_item_delimiter_indices"),
    **_uses(Use.PASSED, "token_indices_to_pool kv_hints"),
}

_SAMPLING: dict[str, Use] = {
    **_uses(Use.READ, "max_new_tokens n beam_width"),
    **_uses(Use.PASSED, "stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty"),
    **_uses(Use.PASSED, "presence_penalty repetition_penalty min_new_tokens json_schema regex ebnf"),
    **_uses(Use.PASSED, "structural_tag ignore_eos skip_special_tokens spaces_between_special_tokens"),
    **_uses(Use.PASSED, "no_stop_trim stream_interval logit_bias sampling_seed custom_params watermark"),
    **_uses(Use.PASSED, "stop_strs stop_regex_strs stop_str_max_len stop_regex_max_len is_normalized"),
    **_uses(Use.PASSED, "ebnf_full_assistant"),
}

#: Refused though no release has them as fields: what other routers put into a body.
_RESERVED_ELSEWHERE = frozenset({"bootstrap_info", "disaggregated_params"})

#: By group of fields, as ``fixtures/sglang/fields.json`` has them.
FIELDS: Mapping[str, Mapping[str, Use | MergeRule]] = MappingProxyType(
    {
        "request": _REQUEST,
        "sampling": _SAMPLING,
        "reply": {**TOP, **_uses(Use.ELSEWHERE, "embedding pooled_hidden_state")},
        "meta_info": META,
    }
)

#: Fields that are refused; gateway.formats.sglang.body_fields has the order in which they are checked.
REFUSED = frozenset(name for name, use in _REQUEST.items() if use is Use.RESERVED) | _RESERVED_ELSEWHERE
