"""The HTTP libraries of training frameworks, as far as a server can distinguish them.

Owns: headers, pools, timeouts and the spelling of JSON. Must never enter: a framework's calls, the gateway's
own code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import httpx

#: Seconds after which aiohttp closes an idle connection.
AIOHTTP_KEEP_ALIVE = 15.0
JSON = {"Content-Type": "application/json"}


def spaced(body: Any) -> bytes:
    """Return JSON with blanks, as aiohttp and requests write it."""
    return json.dumps(body).encode()


def compact(body: Any) -> bytes:
    """Return JSON without blanks, as httpx writes it."""
    return json.dumps(body, separators=(",", ":")).encode()


def httpx_client(limit: int | None = 100, **timeout: float | None) -> httpx.AsyncClient:
    """Return an httpx client with a pool of ``limit``, and no timeout unless given (connect, read), in
    seconds.
    """
    limits = httpx.Limits(max_connections=limit, max_keepalive_connections=limit)
    return httpx.AsyncClient(
        limits=limits, timeout=httpx.Timeout(None, **timeout), trust_env=False, verify=False
    )


def aiohttp_session(
    limit: int | None = 100,
    *,
    total: float | None = 300,
    connect: float | None = None,
    keep_alive: float = AIOHTTP_KEEP_ALIVE,
    force_close: bool = False,
) -> httpx.AsyncClient:
    """Return a client with the headers and the pool of aiohttp. ``connect`` also bounds the wait for the
    pool.
    """
    headers = {
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": "Python/3.11 aiohttp/3.13.2",
    }
    if force_close:
        headers["Connection"] = "close"
    limits = httpx.Limits(
        max_connections=limit,
        max_keepalive_connections=0 if force_close else limit,
        keepalive_expiry=keep_alive,
    )
    timeout = httpx.Timeout(total, connect=connect, pool=connect)
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=timeout, trust_env=False, verify=False)


def requests_session(limit: int = 10) -> httpx.Client:
    """Return a client with the headers of requests; it blocks, so it runs in threads."""
    headers = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "python-requests/2.32.5"}
    limits = httpx.Limits(max_connections=limit, max_keepalive_connections=limit)
    return httpx.Client(headers=headers, limits=limits, timeout=30, trust_env=False, verify=False)


class Framework:
    """A scripted client: a base URL, and a session that is closed at the end."""

    #: The settings of a recipe: the model's name, and its additions to the framework's own sampling.
    model_name = "sim"
    sampling: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, base: str, http: httpx.AsyncClient) -> None:
        self.base = base.rstrip("/")
        self.http = http

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()


class Stubborn(Framework):
    """A framework that retries every failure, refusals included.

    ``pause`` is the time between two tries in seconds; the frameworks use one second.
    """

    TRIES = 60

    def __init__(self, base: str, http: httpx.AsyncClient, pause: float = 1.0) -> None:
        super().__init__(base, http)
        self.pause = pause
        self.failures: list[str] = []

    async def post(self, url: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        """Return the reply's JSON, or else its text. Raises httpx.HTTPError after the last try."""

        async def once() -> httpx.Response:
            return (await self.http.post(url, json=body, headers=headers)).raise_for_status()

        response = await repeated(once, self.TRIES, self.pause, self._noted)
        try:
            return response.json()
        except ValueError:
            return response.text

    def _noted(self, error: httpx.HTTPError) -> bool:
        self.failures.append(str(error))
        return True


async def polled(done: Callable[[], Awaitable[bool]], interval: float) -> None:
    """Return once ``done`` answers True; call it every ``interval`` seconds, as clients do."""
    while not await done():  # noqa: ASYNC110
        await asyncio.sleep(interval)


async def repeated(
    once: Callable[[], Any], tries: int, pause: float, again: Callable[[httpx.HTTPError], bool]
) -> httpx.Response:
    """Return the first reply of ``once``, or raise its last error; ``again`` selects the errors to retry."""
    for left in reversed(range(tries)):
        try:
            response: httpx.Response = await once()
        except httpx.HTTPError as error:
            if not again(error) or not left:
                raise
            await asyncio.sleep(pause)
        else:
            return response
    raise AssertionError("there is at least one try")
