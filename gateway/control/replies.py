"""Replies every control route shares.

Owns: the flat error body, and GET routes that answer HEAD too. Must never enter: a route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel


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
