"""SGLang's sampling parameters: their rules and what they mean for a sequence.

Owns: values (rules of SGLang 0.5.22). Must never enter: types (generate_body.py), HTTP.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.sglang.errors import Fault, ValueFault

_GREEDY_BELOW = 1e-6
_MOST_STOPS = 32
_LONGEST_REGEX = 256


@dataclass(frozen=True, slots=True)
class Params:
    """The validated parameters of one prompt. ``max_new_tokens`` is None for as many as fit."""

    max_new_tokens: int | None
    explicit_max: bool
    min_new_tokens: int
    n: int
    greedy: bool
    seed: int | None
    ignore_eos: bool
    stop: tuple[str, ...]
    stop_regex: tuple[re.Pattern[str], ...]
    stop_token_ids: frozenset[int]
    no_stop_trim: bool
    bias: dict[int, float] | None
    interval: int | None


def read(raw: dict[str, Any] | None, config: SimConfig) -> Params:
    """Return the validated parameters of ``raw``. Raises ValueFault with the engine's text, Fault where it
    answers 500.
    """
    present = {} if raw is None else raw
    if "n" in present and present["n"] is None:
        raise Fault("n is null")
    values = {name: value for name, value in present.items() if value is not None}
    explicit = "max_new_tokens" in values
    limit: int | None = values.get("max_new_tokens", None if "max_new_tokens" in present else 128)
    _check_numbers(values)
    minimum = _check_lengths(limit, values.get("min_new_tokens", 0))
    stop = _texts(values.get("stop"), "stop")
    regex = _texts(values.get("stop_regex"), "stop_regex")
    if config.skip_tokenizer:
        _need_tokenizer(stop, regex, minimum)
    return Params(
        max_new_tokens=limit,
        explicit_max=explicit,
        min_new_tokens=minimum,
        n=max(1, values.get("n", 1)),
        greedy=values.get("temperature", 1.0) < _GREEDY_BELOW or values.get("top_k") == 1,
        seed=values.get("sampling_seed"),
        ignore_eos=values.get("ignore_eos", False),
        stop=tuple(stop),
        stop_regex=tuple(_compiled(regex)),
        stop_token_ids=frozenset(values.get("stop_token_ids", ())),
        no_stop_trim=values.get("no_stop_trim", False),
        bias=_bias(values.get("logit_bias"), config.vocab_size),
        interval=values.get("stream_interval"),
    )


def _check_numbers(values: dict[str, Any]) -> None:
    temperature = values.get("temperature", 1.0)
    if not math.isfinite(temperature) or temperature < 0:
        raise ValueFault(f"temperature must be a non-negative finite number, got {temperature}.")
    if not 0 < values.get("top_p", 1.0) <= 1:
        raise ValueFault(f"top_p must be in (0, 1], got {values['top_p']}.")
    if not 0 <= values.get("min_p", 0.0) <= 1:
        raise ValueFault(f"min_p must be in [0, 1], got {values['min_p']}.")
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= values.get(name, 0.0) <= 2:
            raise ValueFault(f"{name} must be in [-2, 2], got {values[name]}.")
    if not 0 < values.get("repetition_penalty", 1.0) <= 2:
        raise ValueFault(f"repetition_penalty must be in (0, 2], got {values['repetition_penalty']}.")
    # The engine replaces the top_k of a greedy request before it validates it.
    top_k = values.get("top_k", -1)
    if temperature >= _GREEDY_BELOW and top_k < 1 and top_k != -1:
        raise ValueFault(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    grammars = [name for name in ("json_schema", "regex", "ebnf", "structural_tag") if values.get(name)]
    if len(grammars) > 1:
        raise ValueFault("Only one of regex, json_schema, ebnf or structural_tag can be set.")


def _check_lengths(limit: int | None, minimum: int) -> int:
    if limit is not None and limit < 0:
        raise ValueFault(f"max_new_tokens must be at least 0, got {limit}.")
    if limit is not None and not 0 <= minimum <= limit:
        raise ValueFault(f"min_new_tokens must be in [0, max_new_tokens({limit})], got {minimum}.")
    return minimum


def _texts(value: str | list[str] | None, name: str) -> list[str]:
    texts = [value] if isinstance(value, str) else list(value or [])
    if len(texts) > _MOST_STOPS:
        raise ValueFault(f"{name} must have at most {_MOST_STOPS} entries, got {len(texts)}.")
    return [text for text in texts if text]


def _compiled(regex: list[str]) -> list[re.Pattern[str]]:
    for text in regex:
        if len(text.encode()) > _LONGEST_REGEX:
            raise ValueFault(f"stop_regex must be at most {_LONGEST_REGEX} bytes.")
    try:
        return [re.compile(text) for text in regex]
    except re.error as error:
        raise Fault(str(error)) from error


def _need_tokenizer(stop: list[str], regex: list[str], minimum: int) -> None:
    reason = "is unavailable when skip_tokenizer_init=True (requires tokenizer"
    if stop or regex:
        shown = f"stop={stop!r}" if stop else f"stop_regex={regex!r}"
        raise ValueFault(f"{shown} {reason} to decode tokens to text for matching).")
    if minimum > 0:
        raise ValueFault(f"min_new_tokens={minimum} {reason}).")


def _bias(raw: dict[str, float] | None, vocab_size: int) -> dict[int, float] | None:
    if raw is None:
        return None
    for key in raw:
        if not key.isdigit() or int(key) >= vocab_size:
            raise ValueFault(f"logit_bias must has keys in [0, {vocab_size - 1}], got {key}.")
    return {int(key): value for key, value in raw.items()}
