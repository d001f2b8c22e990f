"""The failures of requests to the API server.

Owns: the kinds of failure, how a status or an ERROR event maps to them, and their messages. Must never enter:
I/O, how a failure is handled.
"""

from __future__ import annotations

import json
from http import HTTPStatus

from gateway.stores.kubernetes.objects import Object, number, parts, text

#: Characters of the server's own message.
MAX_MESSAGE = 300

#: Client errors (4xx) that are transient. 401: a token is refused for a moment around its rotation.
_TRANSIENT = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}
)


class Failure(Exception):
    """A failed request. ``wait``: seconds that the server asks for. ``slow``: only a person can mend it."""

    wait = 0.0
    slow = False


class ApiServerUnreachable(Failure):
    """A request without a reply, or with an invalid one. The resourceVersion is still valid."""


class Expired(Failure):
    """A resourceVersion whose changes the server has dropped: all objects must be listed."""


class ApiRefusal(Failure):
    """An error status of the server."""

    def __init__(self, status: int, why: str, wait: float = 0.0) -> None:
        super().__init__(f"the API server answered {status}: {why}")
        self.status = status
        self.wait = wait
        self.slow = 300 <= status < 500 and status not in _TRANSIENT


def refusal(status: int, retry_after: str, body: bytes) -> Failure:
    """Return the failure that a reply with another status than 200 means."""
    try:
        error_object = json.loads(body)
    except (ValueError, RecursionError):
        error_object = {}
    wait = number(error_object, "details", "retryAfterSeconds") or 0
    if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10:
        wait = int(retry_after)
    return _failure(status, error_object, float(wait))


def error_event(error_object: Object) -> Failure:
    """Return the failure that the object of an ERROR event means."""
    return _failure(
        number(error_object, "code") or 500,
        error_object,
        float(number(error_object, "details", "retryAfterSeconds") or 0),
    )


def _failure(status: int, error_object: object, wait: float) -> Failure:
    why = (
        " ".join(text(error_object, "message").split())[:MAX_MESSAGE]
        or text(error_object, "reason")[:MAX_MESSAGE]
        or _phrase(status)
    )
    if status == HTTPStatus.GONE or text(error_object, "reason") in ("Expired", "Gone"):
        return Expired(why)
    # After a restore from a backup, the server's version is older than the one it returned before.
    if any(
        text(each, "reason") == "ResourceVersionTooLarge" for each in parts(error_object, "details", "causes")
    ):
        return Expired(why)
    return ApiRefusal(status, why, wait)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no reason given"
