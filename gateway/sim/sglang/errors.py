"""SGLang's error replies: four JSON bodies and a plain text.

Owns: the bodies. Must never enter: when they are sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.sim.engine import Refusal, encode
from gateway.sim.exchange import TEXT, Exchange
from gateway.sim.sequence import Finish


class ValueFault(Exception):
    """A broken rule, the engine's ValueError: answered with 400, or an error event once the stream has
    begun.
    """


class Fault(Exception):
    """Any other exception of the engine: a plain 500, or a stream that is cut."""


class Crash(Exception):
    """An input that crashes the engine."""


def malformed(problems: Sequence[str], where: tuple[str, Exchange]) -> Refusal:
    """Return the refusal of a body that is not JSON or does not have the types of the request's class.

    ``problems`` are the validator's own texts, ``where`` is the engine's function and the exchange.
    """
    function, exchange = where
    path = exchange.arrival.target.partition(b"?")[0].decode("latin-1")
    file = '  File "/usr/lib/python3/site-packages/sglang/srt/entrypoints/http_server.py", line 912, in '
    route = f"{exchange.arrival.method.decode()} {path}"
    count = "1 validation error" if len(problems) == 1 else f"{len(problems)} validation errors"
    lines = "".join(f"  {problem}\n" for problem in problems)
    message = f"{count}:\n{lines}\n{file}{function}\n    {route} [{', '.join(problems)}]"
    return Refusal(400, _flat(message, "Bad Request", 400))


def contract(message: str) -> Refusal:
    """Return the refusal of a type that the published schema does not allow."""
    return Refusal(400, encode({"error": message}))


def invalid(message: str) -> Refusal:
    """Return the refusal of a request that breaks a rule."""
    return Refusal(400, encode({"error": {"message": message}}))


def internal() -> Refusal:
    return Refusal(500, b"Internal Server Error", TEXT, b"")


def refused(finish: Finish) -> Refusal:
    """Return the answer to a request that the scheduler did not accept."""
    status = finish.status or 500
    if status == 400:
        return invalid(finish.message)
    return Refusal(status, _flat(finish.message, str(status), status))


def event(message: str) -> bytes:
    """Return the error event about a broken rule in a stream that has begun."""
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    return b"data: %b\n\n" % encode({"error": error})


def _flat(message: str, kind: str, code: int) -> bytes:
    return encode({"object": "error", "message": message, "type": kind, "param": None, "code": code})
