"""What can go wrong between the gateway and the API server.

Owns: the kinds of failure, which of them a status or an ERROR event is, and their text for a person. Must
never enter: I/O, what is done about them.
"""

from __future__ import annotations

import json
from http import HTTPStatus

from gateway.stores.kubernetes.objects import Object, number, parts, text

#: Characters of a server's own words.
WORDS = 300

#: Refusals that pass by themselves, though they are the caller's fault by their number. 401: a token is
#: refused for a moment around its rotation.
_PASSING = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}
)


class Failure(Exception):
    """``wait``: seconds that the server asked for. ``slow``: only a person can mend it."""

    wait = 0.0
    slow = False


class Unreachable(Failure):
    """No answer, or none that makes sense; the place in the changes is not lost."""


class Expired(Failure):
    """The server does not remember so far back: all has to be listed anew."""


class ApiRefusal(Failure):
    """The server answered with ``status``, and why."""

    def __init__(self, status: int, why: str, wait: float = 0.0) -> None:
        super().__init__(f"the API server answered {status}: {why}")
        self.status = status
        self.wait = wait
        self.slow = 300 <= status < 500 and status not in _PASSING


def refusal(status: int, retry_after: str, body: bytes) -> Failure:
    """What a reply other than 200 means."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = {}
    wait = number(told, "details", "retryAfterSeconds") or 0
    if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10:
        wait = int(retry_after)
    return _failure(status, told, float(wait))


def error_event(told: Object) -> Failure:
    """What the object of an ERROR event means."""
    return _failure(
        number(told, "code") or 500, told, float(number(told, "details", "retryAfterSeconds") or 0)
    )


def _failure(status: int, told: object, wait: float) -> Failure:
    why = " ".join(text(told, "message").split())[:WORDS] or text(told, "reason")[:WORDS] or _phrase(status)
    if status == HTTPStatus.GONE or text(told, "reason") in ("Expired", "Gone"):
        return Expired(why)
    # After a restore from a backup the server is behind the place that it gave out before.
    if any(text(each, "reason") == "ResourceVersionTooLarge" for each in parts(told, "details", "causes")):
        return Expired(why)
    return ApiRefusal(status, why, wait)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no reason given"
