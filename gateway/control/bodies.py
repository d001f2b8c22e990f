"""Bodies of calls.

Owns: reading one within its limit. Must never enter: what is in it, what is said of a larger one.
"""

from __future__ import annotations

from fastapi import Request


async def body_within(request: Request, limit: int) -> bytes | None:
    """The whole body; None if it is over ``limit`` bytes, whose rest is not read then."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            return None
    return bytes(body)
