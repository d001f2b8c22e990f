"""The types in SGLang's published schema of a generate body, which are stricter than its request class.

Owns: the second type check and its texts (SGLang 0.5.22). Must never enter: values and their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.sim.sglang import errors

SAMPLING_FIELDS: dict[str, str] = {
    "max_new_tokens": "i64",
    "stop": "a value or an array of values for StringOrList",
    "stop_token_ids": "a sequence",
    "stop_regex": "a value or an array of values for StringOrList",
    "temperature": "f64",
    "top_p": "f64",
    "top_k": "i64",
    "min_p": "f64",
    "frequency_penalty": "f64",
    "presence_penalty": "f64",
    "repetition_penalty": "f64",
    "min_new_tokens": "i64",
    "n": "i64",
    "json_schema": "a string",
    "regex": "a string",
    "ebnf": "a string",
    "structural_tag": "a string",
    "ignore_eos": "a boolean",
    "skip_special_tokens": "a boolean",
    "spaces_between_special_tokens": "a boolean",
    "no_stop_trim": "a boolean",
    "stream_interval": "i64",
    "logit_bias": "a map",
    "sampling_seed": "i64",
    "custom_params": "a map",
    "beam_width": "i64",
    "watermark": "struct WatermarkRequestConfig",
}
_REQUEST_FIELDS: dict[str, str] = {
    "rid": "a value or an array of values for StringOrList",
    "text": "a value or an array of values for StringOrList",
    "stream": "a boolean",
    "return_logprob": "a value or an array of values for BoolOrList",
    "logprob_start_len": "a value or an array of values for IntOrList",
    "top_logprobs_num": "a value or an array of values for IntOrList",
    "return_hidden_states": "a value or an array of values for BoolOrList",
    "return_text_in_logprobs": "a boolean",
    "bootstrap_host": "a value or an array of values for StringOrList",
    "bootstrap_port": "a value or an array of values for IntOrList",
    "bootstrap_room": "a value or an array of values for IntOrList",
    "routed_dp_rank": "i64",
    "disagg_prefill_dp_rank": "i64",
    "token_ids_logprob": "a sequence",
}
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "i64": (int,),
    "f64": (int, float),
    "a string": (str,),
    "a boolean": (bool,),
    "a sequence": (list,),
    "a map": (dict,),
    "struct WatermarkRequestConfig": (dict,),
    "a value or an array of values for StringOrList": (str,),
    "a value or an array of values for BoolOrList": (bool,),
    "a value or an array of values for IntOrList": (int,),
}


def check(body: dict[str, Any]) -> None:
    """Raise Refusal for a type or a sampling parameter that the published schema does not have."""
    for name, value in body.items():
        if name == "input_ids":
            _check_ids(value)
        elif name == "sampling_params":
            for params in value if isinstance(value, list) else [value]:
                _check_sampling(params or {})
        elif name in _REQUEST_FIELDS:
            _check_value(value, _REQUEST_FIELDS[name])


def _check_ids(ids: Any) -> None:
    if not ids:
        return
    rows = ids if isinstance(ids[0], list) else [ids]
    for row in rows:
        if bool in set(map(type, row)):
            wrong = next(item for item in row if isinstance(item, bool))
            expected = "a sequence" if row is ids else "i64"
            raise errors.contract(f"invalid type: boolean `{str(wrong).lower()}`, expected {expected}")


def _check_sampling(params: dict[str, Any]) -> None:
    for name, value in params.items():
        expected = SAMPLING_FIELDS.get(name)
        if expected is None:
            known = ", ".join(f"`{field}`" for field in SAMPLING_FIELDS)
            raise errors.contract(f"unknown field `{name}`, expected one of {known}")
        _check_value(value, expected)
    _check_items(params.get("stop_token_ids"), "i64")
    _check_items((params.get("logit_bias") or {}).values(), "f64")


def _check_items(items: Iterable[Any] | None, expected: str) -> None:
    for item in items or ():
        if not _fits(item, expected):
            raise errors.contract(f"invalid type: {_describe(item)}, expected {expected}")


def _check_value(value: Any, expected: str) -> None:
    if value is None or _fits(value, expected):
        return
    if isinstance(value, list) and expected.endswith("OrList"):
        if all(item is None or _fits(item, expected) for item in value):
            return
        value = next(item for item in value if not _fits(item, expected))
    raise errors.contract(f"invalid type: {_describe(value)}, expected {expected}")


def _fits(value: Any, expected: str) -> bool:
    accepted = _ACCEPTED[expected]
    if isinstance(value, bool):
        return bool in accepted
    return isinstance(value, accepted)


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, str):
        return f'string "{value}"'
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    return "sequence" if isinstance(value, list) else "map"
