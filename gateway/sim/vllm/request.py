"""vLLM's generate body.

Owns: what a body means, which errors are found before a stream begins and which after (vLLM 0.33.0). Must
never enter: replies, scheduling, HTTP beyond the content type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.sim.config import SimConfig
from gateway.sim.engine import Refusal, encode
from gateway.sim.exchange import Exchange
from gateway.sim.tokens import pack
from gateway.sim.vllm import errors, field_types, sampling
from gateway.sim.vllm.sampling import Params

_LONGEST_SALT = 128
_IDS = "body.token_ids"
_MODES = ("tokens", "text")
_NOT_READABLE = Refusal(400, b'{"detail":"There was an error parsing the body"}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A generate request that has passed its first checks."""

    prompt: list[int]
    packed: bytes
    params: Params
    stream: bool
    model: str
    request_id: str | None
    include_usage: bool
    continuous_usage: bool
    priority: int
    namespace: str
    return_token_ids: bool
    output_mode: str
    kv_transfer_params: Any
    ec_transfer_params: Any


def decode(exchange: Exchange) -> dict[str, Any]:
    """Return the body as a dictionary. Raises Refusal."""
    if not _is_json(exchange):
        raise errors.malformed(["Unsupported Media Type: Only 'application/json' is allowed"], None)
    raw = exchange.arrival.body
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        body = decode_json(raw)
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        problem = field_types.Problem("model_attributes_type", "body", message, body)
        raise errors.malformed([problem.line], "body")
    return body


def _is_json(exchange: Exchange) -> bool:
    for name, value in exchange.arrival.headers:
        if name.lower() == b"content-type":
            return value.partition(b";")[0].strip().lower() == b"application/json"
    return False


def decode_json(raw: bytes) -> Any:
    """Decode JSON as the engine's own decoder does: it accepts NaN and has its own error texts."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        where = f"body.{error.pos}"
        context = f"{{'error': {error.msg!r}}}"
        problem = field_types.Problem("json_invalid", where, "JSON decode error", {}, context)
        raise errors.malformed([problem.line], where) from error
    except (ValueError, RecursionError) as error:
        raise _NOT_READABLE from error


def read(body: dict[str, Any], config: SimConfig) -> Request:
    """Return the request in ``body``, its types checked first, then its values. Raises Refusal."""
    try:
        request = _typed(body, config)
    except field_types.Problem as problem:
        raise errors.malformed([problem.line], problem.path) from problem
    _check_salt(body.get("cache_salt"))
    if request.output_mode == "text" and config.skip_tokenizer:
        raise errors.invalid(
            "output_mode='text' requires a tokenizer, but this server does not load one (--tokens-only or "
            "--skip-tokenizer-init). Send the request to a server that loads a tokenizer, or use "
            "output_mode='tokens'."
        )
    return request


def check_transport(id: str, request: Request) -> None:
    """Check what must be sent to the engine core, in UTF-8. Raises StreamError."""
    try:
        encode(request.kv_transfer_params)
        encode(request.ec_transfer_params)
    except UnicodeEncodeError as error:
        raise errors.StreamError(str(error)) from error
    if not field_types.is_unicode(id):
        # Only this one comes as an unexpected exception, about which the engine says nothing.
        raise errors.StreamError("", kind="InternalServerError", code=500)


def check_engine_rules(request: Request, config: SimConfig) -> None:
    """Check the rules that only the engine core checks. Raises StreamError."""
    prompt, room = request.prompt, config.max_model_len
    if max(prompt) >= config.vocab_size:
        token = next(token for token in prompt if token >= config.vocab_size)
        raise errors.StreamError(f"Token id {token} is out of vocabulary")
    if len(prompt) >= room:
        raise errors.StreamError(too_long(len(prompt), room))
    params = request.params
    _check_logprobs("logprobs", "sample", params.logprobs, config)
    _check_logprobs("prompt_logprobs", "prompt", params.prompt_logprobs, config)


def too_long(prompt: int, room: int) -> str:
    """Return the text about a prompt of ``prompt`` tokens in a context of ``room``."""
    if prompt > room:
        return (
            f"The decoder prompt (length {prompt}) is longer than the maximum model length of {room}. Make "
            "sure that `max_model_len` is no smaller than the number of text tokens."
        )
    return (
        f"The decoder prompt (length {prompt}) plus the number of requested output tokens (at least 1) is "
        f"longer than the maximum model length of {room}. Make sure that `max_model_len` is no smaller than "
        "the number of text tokens (prompt + requested output tokens)."
    )


def _check_logprobs(name: str, what: str, requested: int | None, config: SimConfig) -> None:
    requested = config.vocab_size if requested == -1 else requested
    if requested is not None and requested > config.max_logprobs:
        message = (
            f"Requested {what} logprobs of {requested}, which is greater than max allowed: "
            f"{config.max_logprobs} (parameter={name}, value={requested})"
        )
        raise errors.StreamError(message, param=name)


def _typed(body: dict[str, Any], config: SimConfig) -> Request:
    prompt = _token_ids(body)
    packed = _packed(prompt)
    if "sampling_params" not in body:
        raise field_types.Problem("missing", "body.sampling_params", "Field required", body)
    model = _optional(body, "model", field_types.text, "")
    options = _optional(body, "stream_options", field_types.mapping, {})
    usage = bool(_optional(options, "include_usage", field_types.boolean, False, "body.stream_options"))
    continuous = bool(
        _optional(options, "continuous_usage_stats", field_types.boolean, False, "body.stream_options")
    )
    request_id = field_types.text(body["request_id"], "body.request_id") if "request_id" in body else None
    priority = field_types.integer(body["priority"], "body.priority") if "priority" in body else 0
    salt = _optional(body, "cache_salt", field_types.unicode_text, "")
    params = sampling.read(body["sampling_params"], config)
    return Request(
        prompt=prompt,
        packed=packed,
        params=params,
        stream=_optional(body, "stream", field_types.boolean, False),
        model=model,
        request_id=request_id,
        include_usage=usage,
        continuous_usage=usage and continuous,
        priority=priority,
        namespace=f"{model}\0{salt}" if model or salt else "",
        return_token_ids=_optional(body, "return_token_ids", field_types.boolean, False),
        output_mode=_output_mode(body, params),
        kv_transfer_params=_optional(body, "kv_transfer_params", field_types.mapping, None),
        ec_transfer_params=_optional(body, "ec_transfer_params", field_types.mapping, None),
    )


def _optional(
    body: dict[str, Any], name: str, convert: field_types.Conversion, default: Any, at: str = "body"
) -> Any:
    value = body.get(name)
    return default if value is None else convert(value, f"{at}.{name}")


def _token_ids(body: dict[str, Any]) -> list[int]:
    if "token_ids" not in body:
        raise field_types.Problem("missing", _IDS, "Field required", body)
    ids = field_types.integers(body["token_ids"], _IDS)
    if not ids:
        message = "List should have at least 1 item after validation, not 0"
        context = "{'field_type': 'List', 'min_length': 1, 'actual_length': 0}"
        raise field_types.Problem("too_short", _IDS, message, ids, context)
    return ids


def _packed(ids: list[int]) -> bytes:
    try:
        return pack(ids)
    except OverflowError as error:
        if min(ids) < 0:
            raise _value_error(_IDS, "token_ids must not contain negative values", ids) from error
        # An id far outside the vocabulary is refused later, and then nothing reads this.
        return b""


def _output_mode(body: dict[str, Any], params: Params) -> str:
    mode = body.get("output_mode", "tokens")
    if mode not in _MODES:
        expected = "'tokens' or 'text'"
        context = f"{{'expected': {expected!r}}}"
        message = f"Input should be {expected}"
        raise field_types.Problem("literal_error", "body.output_mode", message, mode, context)
    if mode == "text" and not params.detokenize:
        reason = "output_mode='text' requires sampling_params.detokenize to be true"
        raise _value_error("body", reason, body)
    return str(mode)


def _value_error(path: str, reason: str, value: Any) -> field_types.Problem:
    context = f"{{'error': ValueError({reason!r})}}"
    return field_types.Problem("value_error", path, f"Value error, {reason}", value, context)


def _check_salt(salt: str | None) -> None:
    if salt is None:
        return
    if not salt:
        message = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise errors.invalid(message, param="cache_salt")
    if len(salt) > _LONGEST_SALT or any(milestone in salt for milestone in "@/\\\0"):
        message = f"Parameter 'cache_salt' must have at most {_LONGEST_SALT} characters, none of @ / \\ NUL."
        raise errors.invalid(message, param="cache_salt")
