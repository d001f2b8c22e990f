"""The types a SGLang body must have for the class behind it, as pydantic sees them.

Owns: reading a body, the first type check and its texts. Must never enter: values and their meaning.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.sim.http1 import Call
from gateway.sim.sglang import errors

Body = dict[str, Any]


def read(call: Call, model: str, function: str) -> Body:
    """The body as a dictionary, for the class ``model`` and the handler ``function`` of the engine.

    Raises Refusal in the shape of a failed validation.
    """
    where = (function, call)
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


def read_generate(call: Call) -> Body:
    """The body of a generate request. Raises Refusal for a value pydantic does not take."""
    where = ("generate_request", call)
    body = read(call, "GenerateReqInput", where[0])
    for name, value in body.items():
        check = _MODEL.get(name)
        if check is not None and (problem := check(value)) is not None:
            raise errors.malformed(problem(name, value), where)
    return body


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
    if isinstance(value, str):
        return None if value.lower() in _LAX_BOOLS else _NOT_BOOL
    return None if isinstance(value, int | float) and value in (0, 1) else _NOT_BOOL


def _int(value: Any) -> Problem | None:
    if isinstance(value, str):
        return None if value.strip().lstrip("+-").isdecimal() else _NOT_INT
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
            return next((problem for item in value if (problem := check(item))), None)
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
    try:
        array("q", ids)
    except (TypeError, OverflowError) as error:
        return _value_problem(f"contains non-int64 element: {error}")
    return None


def _embeds(value: Any) -> Problem | None:
    """Rows of numbers, or one such list for each prompt."""
    if value is None or _list(value):
        return None if value is None else _NOT_LIST
    for row in value:
        for item in row if isinstance(row, list) else [None]:
            numbers = item if isinstance(item, list) else [item]
            if set(map(type, numbers)) - {int, float}:
                return _problem("float_type", "Input should be a valid number")
    return None


def _token_ids(value: Any) -> Problem | None:
    """A list of ids, or one such list for each prompt."""
    if value is None or value == []:
        return None
    rows = value if isinstance(value, list) and isinstance(value[0], list) else [value]
    wrong = (row for row in rows if not isinstance(row, list) or set(map(type, row)) - {int})
    return _NOT_INT if next(wrong, None) is not None else None


_MODEL: dict[str, Callable[[Any], Problem | None]] = {
    "rid": _one_or_list(_str),
    "text": _one_or_list(_str),
    "input_ids": _ids,
    "input_embeds": _embeds,
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
    "token_ids_logprob": _token_ids,
    "lora_path": _one_or_list(_optional(_str)),
    "extra_key": _one_or_list(_optional(_str)),
    "cache_salt": _one_or_list(_optional(_str)),
    "session_id": _optional(_str),
    "routing_key": _optional(_str),
    "conversation_id": _optional(_str),
}
