"""Calls to the workers API of a running gateway.

Owns: one call and the reading of its reply. Must never enter: the command line, printing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

#: Seconds that one call may take.
CALL_TIMEOUT = 10.0


class CallFailed(Exception):
    """A call had no reply, or one that is not a success."""


def call(url: str, key: str | None, method: str, path: str, body: Any = None) -> Mapping[str, Any]:
    """Return the JSON object that the gateway at ``url`` replies. Raises CallFailed."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = asyncio.run(_send(method, url.rstrip("/") + path, body, headers))
    except TimeoutError:
        raise CallFailed(f"no reply from {url} within {CALL_TIMEOUT:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise CallFailed(f"cannot reach {url}: {str(error) or type(error).__name__}") from None
    return _json(reply)


async def _send(method: str, url: str, body: Any, headers: Mapping[str, str]) -> httpx.Response:
    """Return the complete reply. Raise TimeoutError if it is not complete in time."""
    async with asyncio.timeout(CALL_TIMEOUT), httpx.AsyncClient(timeout=None, trust_env=False) as client:
        return await client.request(method, url, json=body, headers=headers)


def _json(reply: httpx.Response) -> Mapping[str, Any]:
    try:
        found = reply.json()
    except ValueError:
        found = None
    if reply.is_success and isinstance(found, dict):
        return found
    error = found.get("error", found) if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    detail = " without a JSON object" if reply.is_success else ""
    raise CallFailed(str(message) if message else f"the gateway replied {reply.status_code}{detail}")
