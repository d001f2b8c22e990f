"""vLLM's sampling parameters: their types and rules.

Owns: what a ``sampling_params`` object means (vLLM 0.33.0). Must never enter: the rest of a body, replies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.engine import Refusal
from gateway.sim.vllm import errors, field_types

_MAX_SAMPLES = 16384
_MIN_TEMPERATURE = 0.01
_MOST_LOGPROB_IDS = 128
_NULLABLE: dict[str, field_types.Conversion] = {
    "max_tokens": field_types.integer,
    "seed": field_types.integer,
    "stop": field_types.texts,
    "stop_token_ids": field_types.integers,
    "logprobs": field_types.integer,
    "prompt_logprobs": field_types.integer,
    "logprob_token_ids": field_types.integers,
    "logit_bias": field_types.biases,
    "allowed_token_ids": field_types.integers,
    "stream_interval": field_types.integer,
    "structured_outputs": field_types.mapping,
}
_REQUIRED: dict[str, field_types.Conversion] = {
    "n": field_types.integer,
    "min_tokens": field_types.integer,
    "temperature": field_types.number,
    "top_p": field_types.number,
    "top_k": field_types.integer,
    "min_p": field_types.number,
    "presence_penalty": field_types.number,
    "frequency_penalty": field_types.number,
    "repetition_penalty": field_types.number,
    "ignore_eos": field_types.boolean,
    "detokenize": field_types.boolean,
    "include_stop_str_in_output": field_types.boolean,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The validated parameters. ``max_tokens`` is None for all that is left of the context."""

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    bias: dict[int, float] | None = None
    allowed: list[int] | None = None
    detokenize: bool = True
    interval: int = 1

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def read(raw: Any, config: SimConfig) -> Params:
    """Return the validated parameters. Raises Refusal, of one kind for types and of another for values."""
    values = _typed(raw)
    _check_ranges(values)
    _check_counts(values, config)
    _check_ids(values, config)
    _check_stop(values, config)
    temperature = values.get("temperature", 1.0)
    return Params(
        n=values.get("n", 1),
        max_tokens=values.get("max_tokens"),
        min_tokens=values.get("min_tokens", 0),
        temperature=max(temperature, _MIN_TEMPERATURE) if temperature else 0,
        seed=None if values.get("seed") == -1 else values.get("seed"),
        stop=tuple(values.get("stop", ())),
        include_stop=values.get("include_stop_str_in_output", False),
        stop_token_ids=frozenset(values.get("stop_token_ids", ())),
        ignore_eos=values.get("ignore_eos", False),
        logprobs=values.get("logprobs"),
        prompt_logprobs=values.get("prompt_logprobs"),
        bias=values.get("logit_bias"),
        allowed=values.get("allowed_token_ids"),
        detokenize=values.get("detokenize", True),
        interval=values.get("stream_interval", 1),
    )


def _typed(raw: Any) -> dict[str, Any]:
    try:
        present = field_types.mapping(raw, "body.sampling_params")
        values = {}
        for name, value in present.items():
            convert = _NULLABLE.get(name)
            if convert is not None and value is None:
                continue
            convert = convert or _REQUIRED.get(name)
            if convert is not None:
                values[name] = convert(value, f"body.sampling_params.{name}")
        return values
    except field_types.Problem as problem:
        raise _malformed(raw, problem) from problem


def _malformed(raw: Any, problem: field_types.Problem) -> Refusal:
    """Return the refusal of the parameters: two lines, as the validator first tries them as a ready-made
    instance.
    """
    message = "Input should be an instance of SamplingParams"
    context = "{'class': 'SamplingParams'}"
    first = field_types.Problem("is_instance_of", "body.sampling_params", message, raw, context)
    return errors.malformed([first.line, problem.line], "body.sampling_params")


def _check_ranges(values: dict[str, Any]) -> None:
    _check_temperature(values.get("temperature", 1.0))
    top_p = values.get("top_p", 1.0)
    if not 0 < top_p <= 1:
        raise errors.invalid(f"top_p must be in (0, 1], got {top_p}.", param="top_p", value=top_p)
    top_k = values.get("top_k", 0)
    if top_k < -1:
        raise errors.invalid(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    min_p = values.get("min_p", 0.0)
    if not 0 <= min_p <= 1:
        raise errors.invalid(f"min_p must be in [0, 1], got {min_p}.")
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = values.get(name, 0.0)
        if not -2 <= penalty <= 2:
            raise errors.invalid(f"{name} must be in [-2, 2], got {penalty}.")
    penalty = values.get("repetition_penalty", 1.0)
    if not 0 < penalty < math.inf:
        raise errors.invalid(f"repetition_penalty must be greater than zero, got {penalty}.")


def _check_temperature(temperature: float) -> None:
    if not math.isfinite(temperature):
        wrong = f"temperature must be a finite number, got {temperature}."
    elif temperature < 0:
        wrong = f"temperature must be non-negative, got {temperature}."
    elif temperature > 2:
        wrong = f"temperature must be in [0, 2], got {temperature}."
    else:
        return
    raise errors.invalid(wrong, param="temperature", value=temperature)


def _check_counts(values: dict[str, Any], config: SimConfig) -> None:
    n = values.get("n", 1)
    if not 1 <= n <= _MAX_SAMPLES:
        raise errors.invalid(f"n must be in [1, {_MAX_SAMPLES}], got {n}.")
    most, least = values.get("max_tokens"), values.get("min_tokens", 0)
    if most is not None and most < 1:
        message = f"max_tokens must be at least 1, got {most}."
        raise errors.invalid(message, param="max_tokens", value=most)
    if least < 0:
        raise errors.invalid(f"min_tokens must be greater than or equal to 0, got {least}.")
    if most is not None and least > most:
        raise errors.invalid(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")
    for name in ("logprobs", "prompt_logprobs"):
        requested = values.get(name, 0)
        if requested < -1:
            message = f"{name} must be non-negative or -1, got {requested}."
            raise errors.invalid(message, param=name, value=requested)
    if values.get("stream_interval", 1) < 1:
        raise errors.invalid(f"stream_interval must be at least 1, got {values['stream_interval']}.")
    if values.get("temperature", 1.0) == 0 and n > 1:
        raise errors.invalid(f"n must be 1 when using greedy sampling, got {n}.")
    if config.max_running is not None and n > config.max_running:
        raise errors.invalid(f"n must be at most max_num_seqs={config.max_running}, got {n}.")


def _check_ids(values: dict[str, Any], config: SimConfig) -> None:
    named = values.get("logprob_token_ids")
    if named is not None and values.get("logprobs", len(named)) != len(named):
        message = (
            "When both logprobs and logprob_token_ids are set, logprobs must equal len(logprob_token_ids). "
            f"Got logprobs={values['logprobs']}, len(logprob_token_ids)={len(named)}."
        )
        raise errors.invalid(message, param="logprob_token_ids", value=len(named))
    if named is not None and len(named) > _MOST_LOGPROB_IDS:
        raise errors.invalid(f"logprob_token_ids must have at most {_MOST_LOGPROB_IDS} entries.")
    for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
        wrong = [token for token in values.get(name, ()) if not 0 <= token < config.vocab_size]
        if wrong:
            message = (
                f"token_id(s) {wrong} in {name} contain out-of-vocab token ids. "
                f"Vocabulary size: {config.vocab_size}"
            )
            raise errors.invalid(message, param=name, value=wrong)


def _check_stop(values: dict[str, Any], config: SimConfig) -> None:
    stop = values.get("stop")
    if not stop:
        return
    if config.skip_tokenizer:
        raise errors.invalid(
            "stop strings are not supported on a --tokens-only server because detokenization is disabled. "
            "Check stop strings on the coordinator, or use stop_token_ids."
        )
    if "" in stop:
        raise errors.invalid("stop cannot contain an empty string.")
    if values.get("detokenize") is False:
        raise errors.invalid("stop strings are only supported when detokenize is True.")
