"""The input of vLLM's control routes: query parameters, one field of a body, or a JSON body.

Owns: their conversions, and the errors about them (texts of vLLM 0.33.0). Must never enter: what a call does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from gateway.sim.engine import Refusal, query
from gateway.sim.exchange import Exchange
from gateway.sim.vllm import errors, field_types
from gateway.sim.vllm.request import decode_json


def parameter(exchange: Exchange, name: str, convert: field_types.Conversion, default: Any) -> Any:
    """Return the query parameter ``name``, converted. Raises Refusal."""
    text = query(exchange).get(name)
    if text is None:
        return default
    return _converted(convert, text, f"query.{name}")


def parameters(exchange: Exchange, name: str) -> list[str]:
    """Return all values of the query parameter ``name``."""
    text = exchange.arrival.target.partition(b"?")[2].decode("latin-1")
    return parse_qs(text, keep_blank_values=True).get(name, [])


def field(exchange: Exchange, name: str, convert: field_types.Conversion) -> Any:
    """Return the required field ``name`` of the body, converted. Raises Refusal."""
    value = _fields(exchange).get(name)
    if value is None:
        raise _refused(field_types.Problem("missing", f"body.{name}", "Field required", None))
    return _converted(convert, value, f"body.{name}")


def optional_field(exchange: Exchange, name: str, convert: field_types.Conversion) -> Any:
    """Return the field ``name`` of the body, converted, None without one. Raises Refusal."""
    value = _fields(exchange).get(name)
    return None if value is None else _converted(convert, value, f"body.{name}")


def json_body(exchange: Exchange, describe_error: Callable[[str], str]) -> Any:
    """Return the body's JSON, whatever its content type. Raises Refusal with the text ``describe_error``
    returns.
    """
    try:
        return json.loads(exchange.arrival.body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.refusal(describe_error(str(error)), "Bad Request", 400) from error


def _fields(exchange: Exchange) -> Mapping[str, Any]:
    body = decode_json(exchange.arrival.body) if exchange.arrival.body else None
    return body if isinstance(body, dict) else {}


def _converted(convert: field_types.Conversion, value: Any, path: str) -> Any:
    try:
        return convert(value, path)
    except field_types.Problem as problem:
        raise _refused(problem) from problem


def _refused(problem: field_types.Problem) -> Refusal:
    return errors.malformed([problem.line], problem.path)
