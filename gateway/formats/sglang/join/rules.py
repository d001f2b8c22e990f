"""The join rules: how each member of a unary reply is made from the events of a stream.

Owns: the table, and the rule for a member it does not name. Must never enter: code that joins.

Source: the frontend of SGLang 0.5.22. A member has the same rule in both stream modes; the mode decides only
whether APPEND members come complete or in parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class MergeRule(StrEnum):
    """The way a member of the joined reply is made."""

    APPEND = "append"  # all parts in order; an incremental stream sends each part once
    MOST = "most"  # a running total: the largest
    LAST = "last"  # the value in the latest event that has it
    FIRST = "first"  # the value in the first event that has it
    REPEATED = "repeated"  # complete in each event that has it: the latest, never appended
    TERMINAL = "terminal"  # only the event that ends a sample has it
    MEMBERS = "members"  # an object, whose members are classed one by one
    PER_INDEX = "per_index"  # distinguishes the samples of a stream; no reply has it


_APPEND, _MOST, _LAST, _FIRST = MergeRule.APPEND, MergeRule.MOST, MergeRule.LAST, MergeRule.FIRST
_REPEATED, _TERMINAL = MergeRule.REPEATED, MergeRule.TERMINAL

#: The members of an event's object.
TOP: Mapping[str, MergeRule] = MappingProxyType(
    {
        "text": _APPEND,
        "output_ids": _APPEND,
        "meta_info": MergeRule.MEMBERS,
        "prompt_token_ids": _REPEATED,
        "index": MergeRule.PER_INDEX,
    }
)

#: The members of ``meta_info``.
META: Mapping[str, MergeRule] = MappingProxyType(
    {
        "id": _LAST,
        "finish_reason": _LAST,
        "prompt_tokens": _LAST,
        "cached_tokens": _LAST,
        "cached_tokens_details": _LAST,
        "image_tokens": _LAST,
        "audio_tokens": _LAST,
        "video_tokens": _LAST,
        "weight_version": _LAST,
        "weight_versions": _TERMINAL,
        "num_retractions": _LAST,
        "dp_rank": _LAST,
        "completion_tokens": _MOST,
        "reasoning_tokens": _MOST,
        # One entry for each token; the parts of an incremental stream follow each other.
        "output_token_logprobs": _APPEND,
        "output_top_logprobs": _APPEND,
        "output_token_ids_logprobs": _APPEND,
        "output_token_sampling_mask": _APPEND,
        "output_token_sampling_logprobs": _APPEND,
        "output_token_logprobs_length": _MOST,
        "output_token_sampling_mask_length": _MOST,
        # About the prompt; complete in every event.
        "input_token_logprobs": _REPEATED,
        "input_top_logprobs": _REPEATED,
        "input_token_ids_logprobs": _REPEATED,
        "input_top_logprobs_val_flat": _REPEATED,
        "input_top_logprobs_val_flat_b64": _REPEATED,
        "input_top_logprobs_val_flat_b64_dtype": _REPEATED,
        "input_top_logprobs_idx_flat": _REPEATED,
        "input_top_logprobs_idx_flat_b64": _REPEATED,
        "input_top_logprobs_idx_flat_b64_dtype": _REPEATED,
        "input_top_logprobs_shape": _REPEATED,
        "input_top_logprobs_null_prefix": _REPEATED,
        "hidden_states": _REPEATED,
        # The engine refuses to stream them.
        "output_top_logprobs_val_flat": _TERMINAL,
        "output_top_logprobs_val_flat_b64": _TERMINAL,
        "output_top_logprobs_val_flat_b64_dtype": _TERMINAL,
        "output_top_logprobs_idx_flat": _TERMINAL,
        "output_top_logprobs_idx_flat_b64": _TERMINAL,
        "output_top_logprobs_idx_flat_b64_dtype": _TERMINAL,
        "output_top_logprobs_shape": _TERMINAL,
        "output_top_logprobs_null_prefix": _TERMINAL,
        "routed_experts": _TERMINAL,
        "indexer_topk": _TERMINAL,
        "beam_results": _TERMINAL,
        "spec_accept_rate": _TERMINAL,
        "spec_accept_length": _TERMINAL,
        "spec_num_correct_drafts": _TERMINAL,
        "spec_num_proposed_drafts": _TERMINAL,
        "spec_verify_ct": _TERMINAL,
        "spec_cap_length": _TERMINAL,
        "spec_block_accept_length": _TERMINAL,
        "spec_correct_drafts_histogram": _TERMINAL,
        "spec_cap_lens_histogram": _TERMINAL,
        # Timings.
        "response_sent_to_client_ts": _FIRST,
        "queue_time": _LAST,
        "forward_entry_time": _LAST,
        "prefill_finished_time": _LAST,
        "storage_prefetch_wait": _LAST,
        "storage_staging_wait": _LAST,
        "e2e_latency": _TERMINAL,
        "request_received_ts": _TERMINAL,
        "first_token_latency": _TERMINAL,
        "api_server_dispatch_finish_ts": _TERMINAL,
        "request_finished_ts": _TERMINAL,
        "decode_throughput": _TERMINAL,
    }
)

# A member in neither table is LAST. But a model or a plugin may add lists to ``meta_info`` that have one
# entry for each generated token, and they come in parts like log probabilities: a list with as many entries
# as the event has ids is APPEND as long as that holds.

#: An exchange that ends in the queue is answered by the frontend in the scheduler's place. In an incremental
#: stream that last event (the echo) repeats all of the text, these lists in full, and the last id.
ECHOED = frozenset({"output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"})
#: A member of every event but the echo.
NOT_ECHOED = "prompt_tokens"
