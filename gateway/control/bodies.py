"""Bodies of calls.

Owns: reading one within its limit. Must never enter: what is in it, what is said of a larger one.
"""

from __future__ import annotations

from io import BytesIO

from fastapi import Request


async def read_within(request: Request, limit: int) -> bytes | None:
    """The whole body; None if it is over ``limit`` bytes, whose rest is not read then."""
    # Put where it stays as it comes: a copy of a long one at the end would take long.
    body, size = BytesIO(), 0
    async for part in request.stream():
        size += body.write(part)
        if size > limit:
            return None
    return body.getvalue()
