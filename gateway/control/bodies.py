"""Request bodies of control calls.

Owns: reading a body up to a limit. Must never enter: its content, the reply to a larger one.
"""

from __future__ import annotations

from io import BytesIO

from fastapi import Request


async def read_within(request: Request, limit: int) -> bytes | None:
    """Return the complete body, or None as soon as it is larger than ``limit`` bytes."""
    # BytesIO and not a list of parts: joining the parts of a large body would block the event loop.
    body, size = BytesIO(), 0
    async for part in request.stream():
        size += body.write(part)
        if size > limit:
            return None
    return body.getvalue()
