"""Replies every control route shares.

Owns: the flat error body, GET routes that answer HEAD too, passing on a reply of a worker. Must never enter:
a route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.formats.base import ReplyHead
from gateway.formats.headers import to_client


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


def as_it_is(head: ReplyHead, body: bytes) -> Response:
    """A worker's own reply, whole; what concerned its connection alone is left out."""
    response = Response(body, head.status)
    length = [(name, value) for name, value in response.raw_headers if name == b"content-length"]
    response.raw_headers = [*to_client(head.headers), *length]
    return response
