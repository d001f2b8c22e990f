"""What a call of the workers API asks for, in whichever dialect it came.

Owns: reading bodies, queries and keys in paths, within limits, and the error body of these routes. Must never
enter: what is then done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.control.bodies import read_within
from gateway.stores.record import WorkerRecord

#: Largest body of a call, in bytes; a record is at most a third of it.
BODY_LIMIT = 128 * 1024
#: Members by the names that other routers give them.
_ALIASES = {"model_id": "model"}
_INTEGERS = ("bootstrap_port", "priority")
_WORDS = {"true": True, "1": True, "false": False, "0": False}
_ONE_SLASH = re.compile(r"(https?):/(?!/)")


class ErrorDetail(BaseModel):
    """``code`` is a word for programs, ``message`` a sentence for people."""

    message: str
    type: str
    code: str


class ErrorBody(BaseModel):
    """Error body of the workers API."""

    error: ErrorDetail


class CallError(Exception):
    """The call cannot be understood or done; it is answered with ``reply``."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def reply(self) -> JSONResponse:
        told = ErrorDetail(message=self.message, type=HTTPStatus(self.status).phrase, code=self.code)
        return JSONResponse(ErrorBody(error=told).model_dump(), self.status, self.headers)


async def call_fields(request: Request) -> dict[str, Any]:
    """The members that a call names: those of its JSON body, and over them those of its query.

    Raises CallError.
    """
    members = _object(await read_body(request, BODY_LIMIT)) | _query(request)
    for alias, name in _ALIASES.items():
        if alias in members:
            members.setdefault(name, members.pop(alias))
    return members


def parse_record(members: Mapping[str, Any]) -> WorkerRecord:
    """The worker that a call registers; members that a record has not are passed over. Raises CallError."""
    try:
        return WorkerRecord.of(members)
    except ValueError as error:
        raise CallError(400, "invalid_worker", str(error)) from error


def worker_keys(request: Request, key: str) -> list[str]:
    """What ``key``, the end of a path, may mean: an id, or a URL, encoded or as it is.

    A proxy on the way may have made one slash of two, and a URL may itself hold an escape.
    """
    raw = bytes(request.scope.get("raw_path") or b"").decode("latin-1")
    tail = raw[raw.find("/workers/") + len("/workers/") :] if "/workers/" in raw else key
    return [key, _ONE_SLASH.sub(r"\1://", key, count=1), tail]


def possible_urls(request: Request, key: str) -> list[str]:
    """Which of these may be the URL of a worker."""
    found = []
    for each in dict.fromkeys(worker_keys(request, key)):
        with suppress(ValueError):
            found.append(WorkerRecord(each).url)
    return found


def _query(request: Request) -> dict[str, Any]:
    text = bytes(request.scope.get("query_string") or b"").decode("latin-1")
    try:
        found: dict[str, Any] = dict(parse_qsl(text, keep_blank_values=False, max_num_fields=100))
    except ValueError as error:
        raise CallError(400, "invalid_query", "the query has too many members") from error
    for name in _INTEGERS:
        if name in found and re.fullmatch(r"-?[0-9]{1,18}", found[name]):
            found[name] = int(found[name])
    if "held" in found:
        found["held"] = _WORDS.get(found["held"].lower(), found["held"])
    found.pop("labels", None)  # an object, which a query cannot hold
    return found


def _object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        raise CallError(400, "invalid_json", f"the body is not JSON: {why}") from error
    if not isinstance(found, dict):
        raise CallError(400, "invalid_json", "the body must be a JSON object")
    return found


async def read_body(request: Request, limit: int) -> bytes:
    """The body, ``limit`` bytes at most. Raises CallError."""
    body = await read_within(request, limit)
    if body is None:
        raise CallError(413, "body_too_large", f"the body is over the limit of {limit} bytes")
    return body
