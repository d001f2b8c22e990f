"""Replies every control route shares.

Owns: the flat error body, GET routes that answer HEAD too, passing on a worker's reply or parts of it. Must
never enter: a route.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.formats.contract import ReplyHead
from gateway.formats.headers import to_client

#: Digits of a whole number that is still added up, or shown, as a number.
_DIGITS = 1000


class Failure(BaseModel):
    """Error body of the control plane: message, reason phrase of the status, status."""

    message: str
    type: str
    code: int


def failure(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error reply of the control plane."""
    body = Failure(message=message, type=HTTPStatus(status).phrase, code=status)
    return JSONResponse(body.model_dump(), status, dict(headers or {}))


def get(router: APIRouter, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
    """Serve ``endpoint`` at ``path`` for GET, and for HEAD, which load balancers like to send."""
    router.add_api_route(path, endpoint, methods=["GET"], **described)
    router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, response_model=None)


def passthrough_response(head: ReplyHead, body: bytes) -> Response:
    """A worker's own reply, whole; what concerned its connection alone is left out."""
    response = Response(body, head.status)
    length = [(name, value) for name, value in response.raw_headers if name == b"content-length"]
    response.raw_headers = [*to_client(head.headers), *length]
    return response


def parse_worker_json(body: bytes) -> Any:
    """A worker's JSON, so that it may stand in an answer of ours: what not every reader takes for a number
    (NaN, one that is over what a float can be) is a text. Raises ValueError."""
    try:
        return json.loads(body, parse_constant=str, parse_float=_float, parse_int=_int)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``value``, with ``words`` of workers in it, as JSON. ASCII: they may hold what UTF-8 cannot."""
    body = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(body, status, dict(headers or {}), "application/json")


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _int(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS else text
