"""TensorRT-LLM's completions body.

Owns: what a body means, and which are refused. Must never enter: replies, scheduling.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.engine import Refusal
from gateway.sim.tokens import tokenize
from gateway.sim.trtllm import errors

#: The fields of a request; any other is refused.
FIELDS = frozenset(
    "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop "
    "stream stream_options suffix temperature top_p user lora_request prompt_ignore_length use_beam_search "
    "top_k top_p_min min_p repetition_penalty length_penalty early_stopping stop_token_ids "
    "include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens "
    "truncate_prompt_tokens return_context_logits detokenize thinking_token_budget add_special_tokens "
    "response_format disaggregated_params priority conversation_params".split()
)
_INTEGERS = ("max_tokens", "n", "logprobs", "seed", "min_tokens", "top_k")
#: Those of them that may not be null.
_REQUIRED = ("n", "min_tokens", "top_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A validated request. ``max_tokens`` is None for all that is left of the context."""

    prompts: list[list[int]]
    model: str
    n: int
    max_tokens: int | None
    min_tokens: int
    seed: int | None
    greedy: bool
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    logprobs: int
    detokenize: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


def read(raw: bytes, config: SimConfig) -> Request:
    """Return the request in a body. Raises Refusal."""
    body = _decoded(raw)
    for name in ("model", "prompt"):
        if name not in body:
            raise errors.invalid("missing", (name,), "Field required", body)
    for name, value in body.items():
        if name not in FIELDS:
            raise errors.invalid("extra_forbidden", (name,), "Extra inputs are not permitted", value)
    _check_types(body)
    options = body.get("stream_options") or {}
    if options and not body.get("stream"):
        message = "Value error, Stream options can only be defined when stream is true."
        raise errors.invalid("value_error", (), message, body)
    prompts = _prompts(body["prompt"], config)
    _check(prompts, config)
    stop = body.get("stop") or ()
    usage = bool(options) and options.get("include_usage", True)
    temperature, top_k = body.get("temperature"), body.get("top_k", 0)
    return Request(
        prompts=prompts,
        model=str(body["model"]),
        n=max(1, body.get("n", 1)),
        max_tokens=body.get("max_tokens"),
        min_tokens=body.get("min_tokens", 0),
        seed=body.get("seed"),
        greedy=temperature == 0 or top_k == 1,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        ignore_eos=bool(body.get("ignore_eos", False)),
        logprobs=max(0, body.get("logprobs") or 0),
        detokenize=bool(body.get("detokenize", True)),
        stream=bool(body.get("stream")),
        include_usage=usage,
        continuous_usage=usage and bool(options.get("continuous_usage_stats")),
    )


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        position = getattr(error, "pos", 0)
        raise errors.invalid("json_invalid", (str(position),), "JSON decode error", {}) from error
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise errors.invalid("model_attributes_type", (), message, body)
    return body


def _check_types(body: dict[str, Any]) -> None:
    """Refuse what the engine cannot read. Raises Refusal."""
    for name in _INTEGERS:
        if name in body and (body[name] is not None or name in _REQUIRED) and type(body[name]) is not int:
            raise errors.invalid("int_type", (name,), "Input should be a valid integer", body[name])
    options, stop, ids = (body.get(name) for name in ("stream_options", "stop", "stop_token_ids"))
    if not isinstance(options, dict | None):
        message = "Input should be a valid dictionary or instance of StreamOptions"
        raise errors.invalid("model_attributes_type", ("stream_options",), message, options)
    if not isinstance(stop, str | None) and not _is_list_of(str, stop):
        raise errors.invalid("string_type", ("stop", "str"), "Input should be a valid string", stop)
    if ids is not None and not _is_list_of(int, ids):
        raise errors.invalid("list_type", ("stop_token_ids",), "Input should be a valid list", ids)


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)


def _prompts(prompt: Any, config: SimConfig) -> list[list[int]]:
    """Return the ids of each prompt. Raises Refusal."""
    if isinstance(prompt, str):
        return [tokenize(prompt, config.vocab_size)]
    if isinstance(prompt, list) and prompt:
        if all(type(item) is int for item in prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt):
            return [tokenize(item, config.vocab_size) for item in prompt]
        if all(isinstance(item, list) and all(type(id) is int for id in item) for item in prompt):
            return list(prompt)
    raise _not_a_prompt(prompt)


def _not_a_prompt(prompt: Any) -> Refusal:
    return errors.invalid("list_type", ("prompt", "list[int]"), "Input should be a valid list", prompt)


def _check(prompts: list[list[int]], config: SimConfig) -> None:
    """Check what the engine finds before it generates, streamed or not. Raises Refusal."""
    for prompt in prompts:
        if not prompt:
            raise errors.refusal("The prompt must have at least one token")
        if not 0 <= min(prompt) <= max(prompt) < config.vocab_size:
            raise errors.refusal(f"Token ID out of range: must be in [0, {config.vocab_size})")
        if len(prompt) >= config.max_model_len:
            limit = f"max_seq_len ({config.max_model_len})"
            raise errors.refusal(f"The prompt length ({len(prompt)}) must be below {limit}")
