"""The types of an SGLang generate body, as pydantic checks them against GenerateReqInput (SGLang 0.5.22).

Owns: reading a body as JSON, the first type check of a generate body. Must never enter: values and their
meaning.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.sim.exchange import Exchange
from gateway.sim.sglang import errors
from gateway.sim.sglang.field_types import (
    MISSING,
    NOT_INT,
    NOT_LIST,
    Check,
    Problem,
    boolean,
    dictionary,
    integer,
    one_or_list,
    optional,
    problem,
    string,
    value_problem,
)

Body = dict[str, Any]


def decoded(exchange: Exchange, function: str) -> Any:
    """Return the body's JSON, or its bytes if its content type is not JSON, for the engine's handler
    ``function``.

    Raises Refusal in the shape of a failed validation.
    """
    body = exchange.arrival.body
    if not body:
        raise errors.malformed([MISSING((), None)], (function, exchange))
    if not _is_json(exchange):
        return body
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.malformed([_bad_json(str(error), len(body))], (function, exchange)) from error


def _is_json(exchange: Exchange) -> bool:
    for name, value in exchange.arrival.headers:
        if name.lower() == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
            return kind == b"application/json" or (
                kind.startswith(b"application/") and kind.endswith(b"+json")
            )
    return False


def _not_a_dict(value: object) -> str:
    return (
        "{'type': 'dataclass_type', 'loc': ('body',), 'msg': 'Input should be a dictionary or an instance of "
        f"GenerateReqInput', 'input': {value!r}, 'ctx': {{'class_name': 'GenerateReqInput'}}}}"
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


def read_generate(exchange: Exchange) -> Body:
    """Return the body of a generate request. Raises Refusal for a value that pydantic refuses."""
    where = ("generate_request", exchange)
    body = decoded(exchange, where[0])
    if not isinstance(body, dict):
        raise errors.malformed([_not_a_dict(body)], where)
    for name, value in body.items():
        check = _MODEL.get(name)
        if check is not None and (wrong := check(value)) is not None:
            raise errors.malformed([wrong((name,), value)], where)
    return body


def _ids(value: Any) -> Problem | None:
    if value is None:
        return None
    if not isinstance(value, list):
        return value_problem(f"must be list or null; got {type(value).__name__}")
    if not value:
        return None
    first = value[0]
    if isinstance(first, list):
        return next((wrong for row, ids in enumerate(value) if (wrong := _row(row, ids))), None)
    if not isinstance(first, int):
        return value_problem(f"elements must be int or list; got {type(first).__name__}")
    return _int64s(value)


def _row(row: int, ids: Any) -> Problem | None:
    if not isinstance(ids, list):
        return value_problem(f"row {row}: must be list; got {type(ids).__name__}")
    if ids and not isinstance(ids[0], int):
        return value_problem(f"row {row}: elements must be int; got {type(ids[0]).__name__}")
    return _int64s(ids)


def _int64s(ids: list[Any]) -> Problem | None:
    try:
        array("q", ids)
    except (TypeError, OverflowError) as error:
        return value_problem(f"contains non-int64 element: {error}")
    return None


def _embeds(value: Any) -> Problem | None:
    """Check rows of numbers, or a list of rows for each prompt."""
    if value is None or not isinstance(value, list):
        return None if value is None else NOT_LIST
    for row in value:
        for item in row if isinstance(row, list) else [None]:
            numbers = item if isinstance(item, list) else [item]
            if set(map(type, numbers)) - {int, float}:
                return problem("float_type", "Input should be a valid number")
    return None


def _token_ids(value: Any) -> Problem | None:
    """Check a list of ids, or a list of ids for each prompt."""
    if value is None or value == []:
        return None
    rows = value if isinstance(value, list) and isinstance(value[0], list) else [value]
    wrong = (row for row in rows if not isinstance(row, list) or set(map(type, row)) - {int})
    return NOT_INT if next(wrong, None) is not None else None


_FLAGS = (
    *("return_text_in_logprobs", "stream", "log_metrics", "background", "return_prompt_token_ids"),
    *("return_routed_experts", "return_indexer_topk", "return_entropy", "return_bytes", "no_logs"),
    *("return_flat_raw_top_logprobs", "return_flat_raw_output_top_logprobs", "require_reasoning"),
    "use_audio_in_video",
)
_MODEL: Mapping[str, Check] = {
    **dict.fromkeys(_FLAGS, boolean),
    "rid": one_or_list(string),
    "text": one_or_list(string),
    "input_ids": _ids,
    "input_embeds": _embeds,
    "sampling_params": one_or_list(dictionary),
    "return_logprob": one_or_list(boolean),
    "logprob_start_len": one_or_list(integer),
    "top_logprobs_num": one_or_list(integer),
    "routed_experts_start_len": integer,
    "session_params": optional(dictionary),
    "priority": optional(integer),
    "routed_dp_rank": optional(integer),
    "data_parallel_rank": optional(integer),
    "token_ids_logprob": _token_ids,
    "lora_path": one_or_list(optional(string)),
    "extra_key": one_or_list(optional(string)),
    "cache_salt": one_or_list(optional(string)),
    "session_id": optional(string),
    "routing_key": optional(string),
    "conversation_id": optional(string),
}
