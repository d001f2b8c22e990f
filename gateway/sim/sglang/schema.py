"""The types a generate body must have: first pydantic's view of them, then the published schema's.

Owns: both type checks and their texts. Must never enter: values and their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.sim.http1 import Call
from gateway.sim.sglang import errors

Body = dict[str, Any]
_INT64 = range(-(2**63), 2**63)
_WHERE = "generate_request"


def read(call: Call, model: str = "GenerateReqInput", where: str = _WHERE) -> Body:
    """The body as a dictionary. Raises Refusal in the shape of a failed validation."""
    if not _is_json(call):
        raise errors.malformed(_not_a_dict(call.arrival.body, model), where)
    try:
        body = msgspec.json.decode(call.arrival.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.malformed(_bad_json(str(error), len(call.arrival.body)), where) from error
    if not isinstance(body, dict):
        raise errors.malformed(_not_a_dict(body, model), where)
    return body


def _is_json(call: Call) -> bool:
    for name, value in call.arrival.headers:
        if name.lower() == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
            return kind == b"application/json" or (
                kind.startswith(b"application/") and kind.endswith(b"+json")
            )
    return False


def _not_a_dict(value: object, model: str) -> str:
    return (
        "{'type': 'dataclass_type', 'loc': ('body',), 'msg': 'Input should be a dictionary or an instance of "
        f"{model}', 'input': {value!r}, 'ctx': {{'class_name': '{model}'}}}}"
    )


def _bad_json(reason: str, length: int) -> str:
    at, what = length, "unexpected end of data"
    if "byte " in reason:
        at = int(reason.rpartition("byte ")[2].rstrip(")"))
        what = "unexpected character, expected a JSON value"
    return (
        f"{{'type': 'json_invalid', 'loc': ('body', {at}), 'msg': 'JSON decode error', 'input': {{}}, "
        f"'ctx': {{'error': '{what}'}}}}"
    )


# What pydantic refuses.


def validate(body: Body) -> None:
    """Raise Refusal for a value pydantic does not take."""
    for name, value in body.items():
        check = _MODEL.get(name)
        if check is not None and (problem := check(value)) is not None:
            raise errors.malformed(problem(name, value), _WHERE)


Problem = Callable[[str, Any], str]


def _problem(kind: str, message: str) -> Problem:
    return lambda name, value: (
        f"{{'type': '{kind}', 'loc': ('body', '{name}'), 'msg': '{message}', 'input': {value!r}}}"
    )


def _value_problem(message: str) -> Problem:
    def text(name: str, value: Any) -> str:
        quoted = repr("Value error, " + message)
        return (
            f"{{'type': 'value_error', 'loc': ('body', '{name}'), 'msg': {quoted}, 'input': {value!r}, "
            f"'ctx': {{'error': ValueError({message!r})}}}}"
        )

    return text


_NOT_BOOL = _problem("bool_type", "Input should be a valid boolean")
_NOT_INT = _problem("int_type", "Input should be a valid integer")
_NOT_STR = _problem("string_type", "Input should be a valid string")
_NOT_DICT = _problem("dict_type", "Input should be a valid dictionary")
_NOT_LIST = _problem("list_type", "Input should be a valid list")
_LAX_BOOLS = {"true", "false", "1", "0", "on", "off", "yes", "no", "t", "f", "y", "n"}


def _bool(value: Any) -> Problem | None:
    lax = value in (0, 1) if isinstance(value, int | float) else str(value).lower() in _LAX_BOOLS
    return None if lax and value is not None else _NOT_BOOL


def _int(value: Any) -> Problem | None:
    if isinstance(value, str):
        return None if value.strip().lstrip("+-").isdigit() else _NOT_INT
    if isinstance(value, float):
        return None if value.is_integer() else _NOT_INT
    return None if isinstance(value, int) else _NOT_INT


def _str(value: Any) -> Problem | None:
    return None if isinstance(value, str) else _NOT_STR


def _dict(value: Any) -> Problem | None:
    return None if isinstance(value, dict) else _NOT_DICT


def _list(value: Any) -> Problem | None:
    return None if isinstance(value, list) else _NOT_LIST


def _optional(check: Callable[[Any], Problem | None]) -> Callable[[Any], Problem | None]:
    return lambda value: None if value is None else check(value)


def _one_or_list(check: Callable[[Any], Problem | None]) -> Callable[[Any], Problem | None]:
    def either(value: Any) -> Problem | None:
        if value is None:
            return None
        if isinstance(value, list):
            return next((problem for item in value if item is not None and (problem := check(item))), None)
        return check(value)

    return either


def _ids(value: Any) -> Problem | None:
    if value is None:
        return None
    if not isinstance(value, list):
        return _value_problem(f"must be list or null; got {type(value).__name__}")
    if not value:
        return None
    first = value[0]
    if isinstance(first, list):
        return next((problem for row, ids in enumerate(value) if (problem := _row(row, ids))), None)
    if not isinstance(first, int):
        return _value_problem(f"elements must be int or list; got {type(first).__name__}")
    return _int64s(value)


def _row(row: int, ids: Any) -> Problem | None:
    if not isinstance(ids, list):
        return _value_problem(f"row {row}: must be list; got {type(ids).__name__}")
    if ids and not isinstance(ids[0], int):
        return _value_problem(f"row {row}: elements must be int; got {type(ids[0]).__name__}")
    return _int64s(ids)


def _int64s(ids: list[Any]) -> Problem | None:
    kinds = set(map(type, ids)) - {int, bool}
    if kinds:
        name = kinds.pop().__name__
        return _value_problem(
            f"contains non-int64 element: '{name}' object cannot be interpreted as an integer"
        )
    if ids and (max(ids) not in _INT64 or min(ids) not in _INT64):
        return _value_problem("contains non-int64 element: int too big to convert")
    return None


_MODEL: dict[str, Callable[[Any], Problem | None]] = {
    "rid": _one_or_list(_str),
    "text": _one_or_list(_str),
    "input_ids": _ids,
    "input_embeds": _optional(_list),
    "sampling_params": _one_or_list(_dict),
    "return_logprob": _one_or_list(_bool),
    "logprob_start_len": _one_or_list(_int),
    "top_logprobs_num": _one_or_list(_int),
    "return_text_in_logprobs": _bool,
    "stream": _bool,
    "log_metrics": _bool,
    "background": _bool,
    "return_prompt_token_ids": _bool,
    "session_params": _optional(_dict),
    "priority": _optional(_int),
    "routed_dp_rank": _optional(_int),
    "data_parallel_rank": _optional(_int),
    "lora_path": _one_or_list(_str),
    "extra_key": _one_or_list(_str),
    "cache_salt": _one_or_list(_str),
    "session_id": _optional(_str),
    "routing_key": _optional(_str),
    "conversation_id": _optional(_str),
}


# What the published schema refuses.

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


def check_contract(body: Body) -> None:
    """Raise Refusal for a type or a sampling key that the published schema does not have."""
    for name, value in body.items():
        if name == "input_ids":
            _contract_ids(value)
        elif name == "sampling_params":
            for params in value if isinstance(value, list) else [value]:
                if isinstance(params, dict):
                    _contract_sampling(params)
        elif name in _REQUEST_FIELDS:
            _contract_value(value, _REQUEST_FIELDS[name])


def _contract_ids(ids: Any) -> None:
    if not ids:
        return
    rows = ids if isinstance(ids[0], list) else [ids]
    for row in rows:
        if bool in set(map(type, row)):
            wrong = next(item for item in row if isinstance(item, bool))
            expected = "a sequence" if row is ids else "i64"
            raise errors.contract(f"invalid type: boolean `{str(wrong).lower()}`, expected {expected}")


def _contract_sampling(params: dict[str, Any]) -> None:
    for name, value in params.items():
        expected = SAMPLING_FIELDS.get(name)
        if expected is None:
            known = ", ".join(f"`{field}`" for field in SAMPLING_FIELDS)
            raise errors.contract(f"unknown field `{name}`, expected one of {known}")
        _contract_value(value, expected)


def _contract_value(value: Any, expected: str) -> None:
    if value is None or _fits(value, expected):
        return
    if isinstance(value, list) and expected.endswith("OrList"):
        if all(item is None or _fits(item, expected) for item in value):
            return
        value = next(item for item in value if not _fits(item, expected))
    raise errors.contract(f"invalid type: {_told(value)}, expected {expected}")


def _fits(value: Any, expected: str) -> bool:
    accepted = _ACCEPTED[expected]
    if isinstance(value, bool):
        return bool in accepted
    return isinstance(value, accepted)


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, str):
        return f'string "{value}"'
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    return "sequence" if isinstance(value, list) else "map"
