"""Events of this format, and what two replies to one request may differ in."""

from __future__ import annotations

from typing import Any

from tests.formats.support import compact

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


def chunk(tokens: list[int], finish: str | None = None, *, index: int = 0, **more: Any) -> bytes:
    """One event as the engine spells it."""
    choice = {"index": index, "finish_reason": finish, "stop_reason": None, "token_ids": tokens}
    found = {"request_id": "generate-tokens-a", "usage": None, "choices": [choice], **more}
    return b"data: %b\n\n" % compact(found)
