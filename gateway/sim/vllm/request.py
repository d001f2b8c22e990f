"""vLLM's generate body: its lax types, its rules, its sampling parameters.

Owns: what a body means. Must never enter: replies, scheduling, HTTP beyond the content type.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.sim.config import SimConfig
from gateway.sim.engine import Refusal
from gateway.sim.http1 import Call
from gateway.sim.tokens import pack
from gateway.sim.vllm import errors

_MAX_SAMPLES = 16384
_LONGEST_SALT = 128
_MIN_TEMPERATURE = 0.01
_MOST_LOGPROB_IDS = 128
_NULLABLE = frozenset(
    {
        "max_tokens",
        "seed",
        "stop",
        "stop_token_ids",
        "logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "structured_outputs",
        "extra_args",
        "stream_interval",
        "thinking_token_budget",
        "skip_reading_prefix_cache",
    }
)
_INTS = ("n", "max_tokens", "min_tokens", "seed", "top_k", "logprobs", "prompt_logprobs", "stream_interval")
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_TRUE = {"true", "1", "on", "yes", "t", "y"}
_FALSE = {"false", "0", "off", "no", "f", "n"}


@dataclass(frozen=True, slots=True)
class Request:
    """A generate request that passed its first checks. ``explicit_max``: max_tokens was in the body."""

    prompt: list[int]
    packed: bytes
    stream: bool
    model: str
    request_id: str | None
    include_usage: bool
    continuous_usage: bool
    priority: int
    namespace: str
    return_token_ids: bool
    output_mode: str
    kv_transfer_params: dict[str, Any] | None
    ec_transfer_params: dict[str, Any] | None
    sampling: dict[str, Any]
    n: int
    greedy: bool
    max_tokens: int | None
    logprobs: int | None
    prompt_logprobs: int | None


def decode(call: Call) -> dict[str, Any]:
    """The body as a dictionary. Raises Refusal."""
    if not _is_json(call):
        raise errors.malformed(["Unsupported Media Type: Only 'application/json' is allowed"], None)
    raw = call.arrival.body
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        body = _decode_slowly(raw)
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        problem = (
            f"{{'type': 'model_attributes_type', 'loc': 'body', 'msg': '{message}', 'input': {_shown(body)}}}"
        )
        raise errors.malformed([problem], "body")
    return body


def _is_json(call: Call) -> bool:
    for name, value in call.arrival.headers:
        if name.lower() == b"content-type":
            return value.partition(b";")[0].strip().lower() == b"application/json"
    return False


def _decode_slowly(raw: bytes) -> Any:
    """As the engine's own decoder: it takes NaN, and words its errors otherwise."""
    try:
        return json.loads(raw)
    except UnicodeDecodeError as error:
        raise Refusal(400, b'{"detail":"There was an error parsing the body"}') from error
    except json.JSONDecodeError as error:
        where = f"body.{error.pos}"
        problem = (
            f"{{'type': 'json_invalid', 'loc': '{where}', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': '{error.msg}'}}}}"
        )
        raise errors.malformed([problem], where) from error
    except RecursionError as error:
        raise Refusal(400, b'{"detail":"There was an error parsing the body"}') from error


def read(body: dict[str, Any], config: SimConfig) -> Request:
    """Types, then values. Raises Refusal."""
    prompt = _token_ids(body)
    raw = _sampling_types(body)
    model = _field(body, "model", str, None, "string_type", "Input should be a valid string")
    stream = _bool(body, "stream")
    request_id = body.get("request_id", "")
    if "request_id" in body and not isinstance(request_id, str):
        raise _type_error("request_id", "string_type", "Input should be a valid string", request_id)
    mode = body.get("output_mode", "tokens")
    if mode not in ("tokens", "text"):
        expected = "'tokens' or 'text'"
        problem = (
            f"{{'type': 'literal_error', 'loc': 'body.output_mode', 'msg': \"Input should be {expected}\", "
            f"'input': {_shown(mode)}, 'ctx': {{'expected': \"{expected}\"}}}}"
        )
        raise errors.malformed([problem], "body.output_mode")
    options = body.get("stream_options") or {}
    sampling = _sampling_values(raw, config)
    _check_salt(body.get("cache_salt"))
    _check_output_mode(mode, sampling, config)
    return Request(
        prompt=prompt,
        packed=_packed(prompt),
        stream=stream,
        model=model or "",
        request_id=request_id if "request_id" in body else None,
        include_usage=bool(options.get("include_usage", False)),
        continuous_usage=bool(options.get("include_usage")) and bool(options.get("continuous_usage_stats")),
        priority=_int_field(body, "priority"),
        namespace=f"{model or ''}\0{body.get('cache_salt') or ''}" if model or body.get("cache_salt") else "",
        return_token_ids=_bool(body, "return_token_ids"),
        output_mode=mode,
        kv_transfer_params=body.get("kv_transfer_params"),
        ec_transfer_params=body.get("ec_transfer_params"),
        sampling=sampling,
        n=sampling.get("n", 1),
        greedy=sampling.get("temperature", 1.0) < _MIN_TEMPERATURE / 1000,
        max_tokens=sampling.get("max_tokens"),
        logprobs=sampling.get("logprobs"),
        prompt_logprobs=sampling.get("prompt_logprobs"),
    )


def check_engine_rules(request: Request, config: SimConfig) -> None:
    """What only the engine itself finds. Raises Late."""
    prompt, room = request.prompt, config.max_model_len
    for token in prompt:
        if token >= config.vocab_size:
            raise errors.Late(f"Token id {token} is out of vocabulary")
    if len(prompt) >= room:
        raise errors.Late(too_long(len(prompt), room))
    for name, what in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
        asked = request.sampling.get(name)
        asked = config.vocab_size if asked == -1 else asked
        if asked is not None and asked > config.max_logprobs:
            message = (
                f"Requested {what} logprobs of {asked}, which is greater than max allowed: "
                f"{config.max_logprobs} (parameter={name}, value={asked})"
            )
            raise errors.Late(message, param=name)


def too_long(prompt: int, room: int) -> str:
    return (
        f"The decoder prompt (length {prompt}) plus the number of requested output tokens (at least 1) is longer "
        f"than the maximum model length of {room}. Make sure that `max_model_len` is no smaller than the number "
        "of text tokens (prompt + requested output tokens)."
    )


# Types.


def _token_ids(body: dict[str, Any]) -> list[int]:
    if "token_ids" not in body:
        raise _missing("token_ids", body)
    ids = body["token_ids"]
    if not isinstance(ids, list):
        raise _type_error("token_ids", "list_type", "Input should be a valid list", ids)
    if not ids:
        problem = (
            "{'type': 'too_short', 'loc': 'body.token_ids', 'msg': 'List should have at least 1 item after "
            "validation, not 0', 'input': '<list of 0 items>', 'ctx': {'field_type': 'List', 'min_length': 1, "
            "'actual_length': 0}}"
        )
        raise errors.malformed([problem], "body.token_ids")
    if set(map(type, ids)) != {int}:
        ids = [_lax_int(item, f"token_ids.{at}") for at, item in enumerate(ids)]
    if min(ids) < 0:
        reason = "token_ids must not contain negative values"
        problem = (
            f"{{'type': 'value_error', 'loc': 'body.token_ids', 'msg': 'Value error, {reason}', "
            f"'input': {_shown(ids)}, 'ctx': {{'error': ValueError('{reason}')}}}}"
        )
        raise errors.malformed([problem], "body.token_ids")
    return ids


def _packed(ids: list[int]) -> bytes:
    try:
        return pack(ids)
    except OverflowError:
        # Far out of the vocabulary; the engine says so later, and then nothing reads this.
        return b""


def _lax_int(item: Any, path: str) -> int:
    if isinstance(item, bool | int):
        return int(item)
    if isinstance(item, float):
        if item.is_integer():
            return int(item)
        message = "Input should be a valid integer, got a number with a fractional part"
        raise _type_error(path, "int_from_float", message, item)
    if isinstance(item, str) and item.strip().lstrip("+-").isdigit():
        return int(item)
    if isinstance(item, str):
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise _type_error(path, "int_parsing", message, item)
    raise _type_error(path, "int_type", "Input should be a valid integer", item)


def _int_field(body: dict[str, Any], name: str) -> int:
    return _lax_int(body[name], name) if name in body else 0


def _field(body: dict[str, Any], name: str, kind: type, default: Any, error: str, message: str) -> Any:
    value = body.get(name, default)
    if value is None or isinstance(value, kind):
        return value
    raise _type_error(name, error, message, value)


def _bool(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    text = str(value).lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    message = "Input should be a valid boolean, unable to interpret input"
    raise _type_error(name, "bool_parsing", message, value)


def _sampling_types(body: dict[str, Any]) -> dict[str, Any]:
    if "sampling_params" not in body:
        raise _missing("sampling_params", body)
    raw = body["sampling_params"]
    if not isinstance(raw, dict):
        raise _bad_sampling(raw, "dict_type", "sampling_params", "Input should be a valid dictionary", raw)
    values = {}
    for name, value in raw.items():
        if value is None:
            if name not in _NULLABLE and name in (*_INTS, *_FLOATS, "ignore_eos", "detokenize"):
                kind = "int_type" if name in _INTS else "float_type"
                word = "integer" if name in _INTS else "number"
                message = f"Input should be a valid {word}"
                raise _bad_sampling(raw, kind, f"sampling_params.{name}", message, None)
            continue
        if not name.startswith("_"):
            values[name] = _converted(raw, name, value)
    if "max_tokens" in raw and raw["max_tokens"] is None:
        values.pop("max_tokens", None)
    return values


def _converted(raw: dict[str, Any], name: str, value: Any) -> Any:
    path = f"sampling_params.{name}"
    if name in _INTS:
        if isinstance(value, bool | int):
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
            return int(value)
        message = "Input should be a valid integer"
        raise _bad_sampling(raw, "int_type", path, message, value)
    if name in _FLOATS:
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            message = "Input should be a valid number"
            raise _bad_sampling(raw, "float_type", path, message, value) from error
    return value


def _bad_sampling(raw: Any, kind: str, path: str, message: str, value: Any) -> Refusal:
    """Both lines of the validator: it tries an instance of the class first."""
    first = (
        "{'type': 'is_instance_of', 'loc': 'body.sampling_params', 'msg': 'Input should be an instance of "
        f"SamplingParams', 'input': {_shown(raw)}, 'ctx': {{'class': 'SamplingParams'}}}}"
    )
    second = f"{{'type': '{kind}', 'loc': 'body.{path}', 'msg': '{message}', 'input': {_shown(value)}}}"
    return errors.malformed([first, second], "body.sampling_params")


def _missing(name: str, body: dict[str, Any]) -> Refusal:
    problem = f"{{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required', 'input': {_shown(body)}}}"
    return errors.malformed([problem], f"body.{name}")


def _type_error(path: str, kind: str, message: str, value: Any) -> Refusal:
    problem = f"{{'type': '{kind}', 'loc': 'body.{path}', 'msg': '{message}', 'input': {_shown(value)}}}"
    return errors.malformed([problem], f"body.{path}")


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"'<{type(value).__name__} of {len(value)} items>'"
    return repr(str(value))


# Values.


def _sampling_values(values: dict[str, Any], config: SimConfig) -> dict[str, Any]:
    _check_ranges(values)
    _check_counts(values)
    _check_ids(values, config)
    if "temperature" in values and 0 < values["temperature"] < _MIN_TEMPERATURE:
        values["temperature"] = _MIN_TEMPERATURE
    n = values.get("n", 1)
    if values.get("temperature", 1.0) == 0 and n > 1:
        raise errors.invalid(f"n must be 1 when using greedy sampling, got {n}.")
    if config.max_running is not None and n > config.max_running:
        raise errors.invalid(f"n must be at most max_num_seqs={config.max_running}, got {n}.")
    if values.get("stop") and config.skip_tokenizer:
        raise errors.invalid(
            "stop strings are not supported on a --tokens-only server because detokenization is disabled. "
            "Check stop strings on the coordinator, or use stop_token_ids."
        )
    return values


def _check_ranges(values: dict[str, Any]) -> None:
    temperature = values.get("temperature", 1.0)
    if not math.isfinite(temperature):
        message = f"temperature must be a finite number, got {temperature}."
        raise errors.invalid(message, param="temperature", value=temperature)
    if temperature < 0:
        message = f"temperature must be non-negative, got {temperature}."
        raise errors.invalid(message, param="temperature", value=temperature)
    if temperature > 2:
        message = f"temperature must be in [0, 2], got {temperature}."
        raise errors.invalid(message, param="temperature", value=temperature)
    if not 0 < values.get("top_p", 1.0) <= 1:
        message = f"top_p must be in (0, 1], got {values['top_p']}."
        raise errors.invalid(message, param="top_p", value=values["top_p"])
    if values.get("top_k", 0) < -1:
        raise errors.invalid(f"top_k must be 0 (disable), or at least 1, got {values['top_k']}.")
    if not 0 <= values.get("min_p", 0.0) <= 1:
        raise errors.invalid(f"min_p must be in [0, 1], got {values['min_p']}.")
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= values.get(name, 0.0) <= 2:
            raise errors.invalid(f"{name} must be in [-2, 2], got {values[name]}.")
    if not values.get("repetition_penalty", 1.0) > 0:
        raise errors.invalid(
            f"repetition_penalty must be greater than zero, got {values['repetition_penalty']}."
        )


def _check_counts(values: dict[str, Any]) -> None:
    n = values.get("n", 1)
    if not 1 <= n <= _MAX_SAMPLES:
        raise errors.invalid(f"n must be in [1, {_MAX_SAMPLES}], got {n}.")
    most = values.get("max_tokens")
    if most is not None and most < 1:
        message = f"max_tokens must be at least 1, got {most}."
        raise errors.invalid(message, param="max_tokens", value=most)
    least = values.get("min_tokens", 0)
    if least < 0:
        raise errors.invalid(f"min_tokens must be greater than or equal to 0, got {least}.")
    if most is not None and least > most:
        raise errors.invalid(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")
    for name in ("logprobs", "prompt_logprobs"):
        asked = values.get(name)
        if asked is not None and asked < -1:
            raise errors.invalid(f"{name} must be non-negative or -1, got {asked}.", param=name, value=asked)
    if values.get("seed") == -1:
        del values["seed"]


def _check_ids(values: dict[str, Any], config: SimConfig) -> None:
    named = values.get("logprob_token_ids")
    if named is not None and "logprobs" in values and values["logprobs"] != len(named):
        message = (
            "When both logprobs and logprob_token_ids are set, logprobs must equal len(logprob_token_ids). "
            f"Got logprobs={values['logprobs']}, len(logprob_token_ids)={len(named)}."
        )
        raise errors.invalid(message, param="logprob_token_ids", value=len(named))
    if named is not None and len(named) > _MOST_LOGPROB_IDS:
        raise errors.invalid(f"logprob_token_ids must have at most {_MOST_LOGPROB_IDS} entries.")
    given = {
        "logit_bias": [int(key) for key in values.get("logit_bias") or {}],
        "stop_token_ids": list(values.get("stop_token_ids") or []),
        "allowed_token_ids": list(values.get("allowed_token_ids") or []),
    }
    for name, ids in given.items():
        wrong = [token for token in ids if not 0 <= token < config.vocab_size]
        if wrong:
            message = (
                f"token_id(s) {wrong} in {name} contain out-of-vocab token ids. "
                f"Vocabulary size: {config.vocab_size}"
            )
            raise errors.invalid(message, param=name, value=wrong)


def _check_salt(salt: Any) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise errors.invalid(
            "Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt"
        )
    if len(salt) > _LONGEST_SALT or any(mark in salt for mark in "@/\\\0"):
        message = (
            f"Parameter 'cache_salt' must have at most {_LONGEST_SALT} characters and none of @ / \\ NUL."
        )
        raise errors.invalid(message, param="cache_salt")


def _check_output_mode(mode: str, sampling: dict[str, Any], config: SimConfig) -> None:
    if mode == "tokens":
        return
    if sampling.get("detokenize") is False:
        reason = "output_mode='text' requires sampling_params.detokenize to be true"
        problem = (
            f"{{'type': 'value_error', 'loc': 'body', 'msg': \"Value error, {reason}\", "
            f"'input': '<dict of 3 items>', 'ctx': {{'error': ValueError(\"{reason}\")}}}}"
        )
        raise errors.malformed([problem], "body")
    if config.skip_tokenizer:
        raise errors.invalid(
            "output_mode='text' requires a tokenizer, but this server does not load one (--tokens-only or "
            "--skip-tokenizer-init). Send the request to a server that loads a tokenizer, or use "
            "output_mode='tokens'."
        )
