"""Requests of the workers API, under the names of this and of other routers.

Owns: reading bodies, queries and keys in paths, within limits, and the error body of these routes. Must never
enter: the change that a request makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request, Response
from pydantic import BaseModel

from gateway.cards import members as card_members
from gateway.control.bodies import read_within
from gateway.control.replies import json_response
from gateway.stores.record import MEMBERS, WorkerRecord

#: Largest body in bytes; a record is at most a third of it.
BODY_LIMIT = 128 * 1024
#: Names of other routers for members of a record.
_ALIASES = {"model_id": "model", "tool_parser": "tool_call_parser"}
_INTEGERS = ("bootstrap_port", "priority", *card_members.INTEGERS)
#: Members of which a query has true or false.
_SWITCHES = ("held", "cordoned", *card_members.SWITCHES)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_ONE_SLASH = re.compile(r"(https?):/(?!/)")


class ErrorDetail(BaseModel):
    """An error: ``code`` for programs, ``message`` for people."""

    message: str
    type: str
    code: str


class ErrorBody(BaseModel):
    """The error body of the workers API."""

    error: ErrorDetail


class CallError(Exception):
    """A call that is invalid or cannot be done; ``reply`` returns its error reply."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def reply(self) -> Response:
        detail = ErrorDetail(message=self.message, type=HTTPStatus(self.status).phrase, code=self.code)
        return json_response(ErrorBody(error=detail).model_dump(), self.status, self.headers)


async def call_fields(request: Request) -> dict[str, Any]:
    """Return the members of the JSON body of a call, replaced by those of its query.

    Raise CallError.
    """
    members = _object(await read_body(request, BODY_LIMIT)) | _query(request)
    for alias, name in _ALIASES.items():
        if alias in members:
            members.setdefault(name, members.pop(alias))
    return members


def parse_record(members: Mapping[str, Any]) -> WorkerRecord:
    """Return the record of the worker to register; unknown members are ignored. Raise CallError."""
    try:
        return WorkerRecord.of(members)
    except ValueError as error:
        raise CallError(400, "invalid_worker", str(error)) from error


def ignored(members: Mapping[str, Any]) -> list[str]:
    """Return the names of the members that are no part of a record, but for those that are null."""
    return sorted(name for name, value in members.items() if value is not None and name not in MEMBERS)


def worker_keys(request: Request, key: str) -> list[str]:
    """Return the possible spellings of ``key``, the end of a path: an id or a URL, percent-encoded or not.

    A proxy on the way may have replaced two slashes by one, and a URL may itself contain an escape. A slash
    at the end is that of the path: no id has one, and a URL is the same without it.
    """
    raw = bytes(request.scope.get("raw_path") or b"").decode("latin-1")
    tail = raw[raw.find("/workers/") + len("/workers/") :] if "/workers/" in raw else key
    return [key, _ONE_SLASH.sub(r"\1://", key, count=1), tail, key.removesuffix("/")]


def possible_urls(request: Request, key: str) -> list[str]:
    """Return the spellings of ``key`` that are valid URLs of a worker."""
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
    for name in _SWITCHES:
        if name in found:
            found[name] = _BOOLEANS.get(found[name].lower(), found[name])
    found.pop("labels", None)  # labels are an object, which a query cannot hold
    return found


def _object(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CallError(400, "invalid_json", f"the body is not JSON: {_reason(error)}") from error
    if not isinstance(found, dict):
        raise CallError(400, "invalid_json", "the body must be a JSON object")
    return found


def _reason(error: Exception) -> str:
    """Return in which way a body is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if isinstance(error, UnicodeDecodeError):
        return "it is not valid UTF-8 text"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body, of at most ``limit`` bytes. Raise CallError."""
    body = await read_within(request, limit)
    if body is None:
        raise CallError(413, "body_too_large", f"the body is larger than the limit of {limit} bytes")
    return body
