"""Replies that all control routes share.

Owns: the flat error body, GET routes that also answer HEAD, relaying a worker's reply or parts of it. Must
never enter: a route.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel

from gateway.formats.contract import ReplyHead
from gateway.formats.headers import to_client

#: Most digits of an integer that is treated as a number.
_DIGITS = 1000


class Failure(BaseModel):
    """The error body of the control plane: message, reason phrase of the status, status."""

    message: str
    type: str
    code: int


def failure(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error reply of the control plane."""
    body = Failure(message=message, type=HTTPStatus(status).phrase, code=status)
    return json_response(body.model_dump(), status, headers)


def add_get_route(router: APIRouter, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
    """Serve ``endpoint`` at ``path`` for GET and for HEAD, which load balancers send."""
    router.add_api_route(path, endpoint, methods=["GET"], **described)
    router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, response_model=None)


def passthrough_response(head: ReplyHead, body: bytes) -> Response:
    """Return a worker's complete reply, without its hop-by-hop headers."""
    response = Response(body, head.status)
    length = [(name, value) for name, value in response.raw_headers if name == b"content-length"]
    response.raw_headers = [*to_client(head.headers), *length]
    return response


def parse_worker_json(body: bytes) -> Any:
    """Parse the JSON of a worker so that it can be part of a reply of the gateway.

    Numbers that are no standard JSON, such as NaN or one too large for a float, become strings. Raise
    ValueError.
    """
    try:
        return json.loads(body, parse_constant=str, parse_float=_float, parse_int=_int)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``value`` as a JSON reply.

    It is ASCII, because text of workers and of callers may hold what UTF-8 cannot encode.
    """
    body = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(body, status, dict(headers or {}), "application/json")


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _int(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS else text
