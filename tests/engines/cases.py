"""Requests to the engines, by engine and name: valid ones, refused ones, and ones that would end an engine.

Owns: the requests; ``ID`` stands for a new id. Must never enter: replies.
"""

from __future__ import annotations

from typing import Any

from tests.clients.site import PROMPT
from tests.engines.front import ID, Json

KINDS = {"sglang": "sglang", "sglang-incremental": "sglang", "vllm": "vllm"}
OTHER = [9, 77, 310, 44]
SEEDED = {"temperature": 1, "seed": 7}
USAGE = {"include_usage": True}
ODD = {"deep": [1, 2.50, 10**30]}
PROMPT_LOGPROBS: Json = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}


def sglang(sampling: Json, **fields: Any) -> Json:
    """Return a greedy request, unless overridden: its stream and its unary reply have the same tokens."""
    sampling = {"temperature": 0, "max_new_tokens": 12, **sampling}
    return {"rid": ID, "input_ids": PROMPT, "sampling_params": sampling, **fields}


def vllm(sampling: Json, **fields: Any) -> Json:
    sampling = {"temperature": 0, "max_tokens": 12, **sampling}
    return {"request_id": ID, "token_ids": PROMPT, "sampling_params": sampling, **fields}


VALID: dict[str, dict[str, Json]] = {
    "sglang": {
        "ids": sglang({}),
        "no id": {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 4}},
        "one token": sglang({"max_new_tokens": 1}),
        "no token": sglang({"max_new_tokens": 0}),
        "many tokens": sglang({"max_new_tokens": 300}, return_logprob=True, top_logprobs_num=2),
        "text": {"rid": ID, "text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 12}},
        "characters over several tokens": sglang({"max_new_tokens": 60}),
        "logprobs": sglang({}, return_logprob=True),
        "top logprobs": sglang({}, return_logprob=True, top_logprobs_num=5),
        "logprobs of ids": sglang({}, return_logprob=True, token_ids_logprob=[5, 9]),
        "logprobs as text": sglang({}, return_logprob=True, return_text_in_logprobs=True),
        "prompt logprobs": sglang({}, **PROMPT_LOGPROBS),
        "flat prompt logprobs": sglang({}, **PROMPT_LOGPROBS, return_flat_raw_top_logprobs=True),
        "flat prompt logprobs in base64": sglang(
            {}, **PROMPT_LOGPROBS, return_flat_raw_top_logprobs=True, return_flat_raw_top_logprobs_b64=True
        ),
        "scoring": sglang({"max_new_tokens": 0}, **PROMPT_LOGPROBS),
        "prompt ids": sglang({}, return_prompt_token_ids=True),
        "two samples": sglang({"n": 2}, return_logprob=True),
        "stop token": sglang({"stop_token_ids": [305]}),
        "stop string": sglang({"stop": ["w"], "max_new_tokens": 40}),
        "stop string kept": sglang({"stop": ["w"], "max_new_tokens": 40, "no_stop_trim": True}),
        "end of sequence": sglang({"logit_bias": {"2": 1000}}),
        "merged events": sglang({"stream_interval": 5}, return_logprob=True),
        "batch": sglang({}, rid=[f"{ID}-a", f"{ID}-b"], input_ids=[PROMPT, OTHER], return_logprob=True),
        "batch under one id": sglang({}, input_ids=[PROMPT, OTHER]),
        "batch of one": sglang({}, input_ids=[PROMPT]),
        "batch of two samples": sglang({"n": 2}, rid=None, input_ids=[PROMPT, OTHER], return_logprob=True),
        "batch of texts": {
            "text": ["Hello", "world"],
            "sampling_params": {"temperature": 0, "max_new_tokens": 6},
        },
        "unknown fields": sglang({}, not_a_field=ODD),
    },
    "vllm": {
        "ids": vllm({}),
        "one token": vllm({"max_tokens": 1}),
        "many tokens": vllm({"max_tokens": 300, "ignore_eos": True}),
        "base model by name": vllm({}, model="tiny"),
        "logprobs of the sampled": vllm({"logprobs": 0}),
        "top logprobs": vllm({"logprobs": 5}),
        "logprobs of ids": vllm({"logprob_token_ids": [1, 2, 78]}),
        "prompt logprobs": vllm({"prompt_logprobs": 2}),
        "sampled": vllm({**SEEDED, "logprobs": 2}),
        "two samples": vllm({**SEEDED, "n": 2, "logprobs": 1}),
        "four samples with usage": vllm({**SEEDED, "n": 4}, stream_options=USAGE),
        "stop token": vllm({"stop_token_ids": [305]}),
        "stop string": vllm({"stop": ["1"]}),
        "end of sequence": vllm({"allowed_token_ids": [2]}),
        "usage": vllm({}, stream_options=USAGE),
        "usage all along": vllm({}, stream_options={**USAGE, "continuous_usage_stats": True}),
        "prompt ids": vllm({}, return_token_ids=True),
        "text": vllm({}, output_mode="text"),
        "text with logprobs": vllm({"logprobs": 2}, output_mode="text"),
        "characters over several tokens": vllm({"max_tokens": 60}, output_mode="text"),
        "merged events": vllm({"stream_interval": 5, "logprobs": 1}),
        "unknown fields": vllm({}, not_a_field=ODD),
    },
}

REFUSED: dict[str, dict[str, Json]] = {
    "sglang": {
        "unknown sampling field": sglang({"max_tokens": 4}),
        "negative length": sglang({"max_new_tokens": -1}),
        "wrong type": sglang({"temperature": "hot"}),
        "temperature below zero": sglang({"temperature": -1}),
        "no prompt": {"rid": ID, "sampling_params": {}},
        "empty prompt": sglang({}, input_ids=[]),
    },
    "vllm": {
        "temperature below zero": vllm({"temperature": -1}),
        "wrong type": vllm({"temperature": "hot"}),
        "too many logprobs": vllm({"logprobs": 100}),
        "greedy samples": vllm({"temperature": 0, "n": 2}),
        "no prompt": {"request_id": ID, "sampling_params": {}},
        "empty prompt": vllm({}, token_ids=[]),
        "no sampling": {"request_id": ID, "token_ids": PROMPT},
    },
}

#: Refused by an ordinary last event of a stream.
LATE: dict[str, dict[str, Json]] = {
    "sglang": {
        "start of logprobs beyond the prompt": sglang({}, return_logprob=True, logprob_start_len=50),
    },
    "vllm": {},
}

#: Requests each of which ends SGLang's process if it is sent there directly.
ENDING: dict[str, Json] = {
    "negative token": sglang({}, input_ids=[1, -1]),
    "empty text": {"text": "", "sampling_params": {"max_new_tokens": 4}},
    "empty item": sglang({}, rid=None, input_ids=[[1], []]),
    "negative start": sglang({}, return_logprob=True, logprob_start_len=-2),
}


def rows(cases: dict[str, dict[str, Json]]) -> list[tuple[str, str]]:
    """Return each way to start an engine with each of its cases."""
    return [(kind, case) for kind, engine in KINDS.items() for case in cases[engine]]
