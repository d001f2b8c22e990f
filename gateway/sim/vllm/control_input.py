"""What vLLM's control routes read: query parameters, one field of a body, or a body as it is.

Owns: their conversions, and the errors about them. Must never enter: what a call does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

from gateway.sim.call import Call
from gateway.sim.engine import Refusal, query
from gateway.sim.vllm import errors, lax
from gateway.sim.vllm.request import decode_json


def parameter(call: Call, name: str, convert: lax.Convert, default: Any) -> Any:
    """The query parameter ``name``. Raises Refusal."""
    text = query(call).get(name)
    if text is None:
        return default
    return _converted(convert, text, f"query.{name}")


def parameters(call: Call, name: str) -> list[str]:
    """All values of the query parameter ``name``."""
    text = call.arrival.target.partition(b"?")[2].decode("latin-1")
    return parse_qs(text, keep_blank_values=True).get(name, [])


def field(call: Call, name: str, convert: lax.Convert) -> Any:
    """The field ``name`` of the body, which must have it. Raises Refusal."""
    value = _fields(call).get(name)
    if value is None:
        raise _refused(lax.Problem("missing", f"body.{name}", "Field required", None))
    return _converted(convert, value, f"body.{name}")


def optional_field(call: Call, name: str, convert: lax.Convert) -> Any:
    """The field ``name`` of the body, None if it has none. Raises Refusal."""
    value = _fields(call).get(name)
    return None if value is None else _converted(convert, value, f"body.{name}")


def whole(call: Call, complaint: Callable[[str], str]) -> Any:
    """The body's JSON, whatever its content type. ``complaint`` words that it is none. Raises Refusal."""
    try:
        return json.loads(call.arrival.body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.refusal(complaint(str(error)), "Bad Request", 400) from error


def _fields(call: Call) -> Mapping[str, Any]:
    body = decode_json(call.arrival.body) if call.arrival.body else None
    return body if isinstance(body, dict) else {}


def _converted(convert: lax.Convert, value: Any, path: str) -> Any:
    try:
        return convert(value, path)
    except lax.Problem as problem:
        raise _refused(problem) from problem


def _refused(problem: lax.Problem) -> Refusal:
    return errors.malformed([problem.line], problem.path)
