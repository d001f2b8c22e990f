"""Requests, readers, events and ways to cut bytes for the tests of this format."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import HealthCheck, settings

from gateway.formats.contract import Headers, Ids, Reader, ReplyHead
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.request import Request
from tests.formats.support import EVENTS, JSON, View, compact, records

#: For tests of properties: a busy machine is no failure.
fuzzed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

recorded = partial(records, "vllm")

#: Keys of a joined reply, at any depth, whose values may differ from a unary reply's: the engine's clock.
VOLATILE = frozenset(
    {
        "created",
        "time_to_first_token_ms",
        "generation_time_ms",
        "queue_time_ms",
        "mean_itl_ms",
        "tokens_per_second",
    }
)


def request(body: bytes = b"{}", headers: Headers = ()) -> Request:
    return FORMAT.parse(body, headers)


def ids_of(request: Request) -> Ids:
    """Return the ids a gateway would use if the client's are free."""
    named = FORMAT.project(request).ids or ("f" * 32,)
    return Ids(named, named)


def reading(
    *,
    stream: bool = True,
    status: int = 200,
    n: int = 1,
    headers: Headers | None = None,
    ids: Ids | None = None,
) -> Reader:
    """A reader for a reply with this head."""
    asked = request(b'{"token_ids":[1],"sampling_params":{"n":%d}}' % n)
    head = ReplyHead(status, (EVENTS if stream else JSON) if headers is None else headers)
    return FORMAT.reader(asked, View(), ids or ids_of(asked), head)


def chunk(tokens: list[int], finish: str | None = None, *, index: int = 0, **more: Any) -> bytes:
    """One event as the engine spells it."""
    choice = {"index": index, "finish_reason": finish, "stop_reason": None, "token_ids": tokens}
    found = {
        "request_id": more.pop("request_id", "generate-tokens-a"),
        "usage": None,
        "choices": [choice],
        **more,
    }
    return b"data: %b\n\n" % compact(found)
