"""The HTTP libraries of training frameworks, as far as a server can distinguish them, and what all scripts
share.

Owns: headers, pools, timeouts, the spelling of JSON, the checks of a reply. Must never enter: the gateway's
own code.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import httpx

#: Seconds after which aiohttp closes an idle connection.
AIOHTTP_KEEP_ALIVE = 15.0
#: Seconds between two tries of a client, or between two looks; the frameworks wait for a second or more.
PAUSE = 0.02
NOTHING: Mapping[str, Any] = MappingProxyType({})


def spaced(body: Any) -> bytes:
    """Return JSON with blanks, as aiohttp and requests write it."""
    return json.dumps(body).encode()


def compact(body: Any) -> bytes:
    """Return JSON without blanks, as httpx writes it."""
    return json.dumps(body, separators=(",", ":")).encode()


def httpx_client(
    limit: int | None = 100,
    *,
    kept: int | None = None,
    headers: Mapping[str, str] = NOTHING,
    keep_alive: float | None = 5.0,
    **timeout: float | None,
) -> httpx.AsyncClient:
    """Return an httpx client with a pool of ``limit``, of which ``kept`` may be idle, and no timeout but
    those given (connect, read, pool), in seconds.
    """
    limits = httpx.Limits(
        max_connections=limit,
        max_keepalive_connections=limit if kept is None else kept,
        keepalive_expiry=keep_alive,
    )
    waits = httpx.Timeout(None, **timeout)
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=waits, trust_env=False, verify=False)


def aiohttp_session(
    limit: int | None = 100,
    *,
    total: float | None = 300,
    keep_alive: float = AIOHTTP_KEEP_ALIVE,
    force_close: bool = False,
    **timeout: float | None,
) -> httpx.AsyncClient:
    """Return a client with the headers and the pool of aiohttp, whose timeouts are for a complete request."""
    headers = {"Accept-Encoding": "gzip, deflate", "User-Agent": "Python/3.11 aiohttp/3.13.2"}
    if force_close:
        headers["Connection"] = "close"
    kept, waits = (0 if force_close else limit), {"read": total, **timeout}
    return httpx_client(limit, kept=kept, headers=headers, keep_alive=keep_alive, **waits)


@dataclass(frozen=True)
class Sample:
    """What the frameworks keep of a reply. ``status`` is stop, length or abort."""

    tokens: list[int]
    logprobs: list[float]
    status: str
    version: str | None = None
    text: str = ""


def sglang_sample(reply: Any) -> Sample:
    """Read a reply with the checks of all frameworks: tokens from the log probabilities, one for each output
    id.
    """
    meta = reply["meta_info"]
    pairs = meta["output_token_logprobs"]
    assert [pair[1] for pair in pairs] == reply["output_ids"]
    assert meta["finish_reason"]["type"] in ("stop", "length", "abort")
    logprobs = [pair[0] for pair in pairs]
    status, version = meta["finish_reason"]["type"], meta.get("weight_version")
    return Sample(reply["output_ids"], logprobs, status, version, reply["text"])


def vllm_sample(reply: Any) -> Sample:
    """Read a reply with the checks of all frameworks: a finite log probability for each id, under its name if
    any.
    """
    choice = reply["choices"][0]
    content = (choice["logprobs"] or {"content": []})["content"]
    for id, entry in zip(choice["token_ids"], content, strict=True):
        assert math.isfinite(entry["logprob"])
        assert entry.get("token", f"token_id:{id}") == f"token_id:{id}"
    assert choice["finish_reason"] in ("stop", "length", "abort")
    logprobs = [entry["logprob"] for entry in content]
    return Sample(choice["token_ids"], logprobs, choice["finish_reason"], reply.get("weight_version"))


class Framework:
    """A scripted client. Its engines are registered at the router, listed and removed as most frameworks do
    it.
    """

    #: Of its engines.
    KIND = "sglang"
    #: The number of times it sends a request that fails.
    TRIES = 1
    #: The header for the key of a sample or a session, if any.
    KEY = ""
    #: True if it sends the header: some do so under one policy of their router only.
    keyed = False
    #: The settings of a recipe: the model's name, and its additions to the framework's own sampling.
    model_name = "tiny"
    sampling: Mapping[str, Any] = MappingProxyType({"ignore_eos": True})
    writes: Callable[[Any], bytes] = staticmethod(compact)

    def __init__(self, base: str) -> None:
        self.base = base.rstrip("/")
        self.http = self.connect()
        self.http.event_hooks = {"request": [self._note]}
        #: The bodies as they were sent.
        self.sent: list[bytes] = []
        #: The statuses of failed tries; 0 for a connection that failed.
        self.failures: list[int] = []

    def connect(self) -> httpx.AsyncClient:
        return httpx_client(1024)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()

    async def _note(self, request: httpx.Request) -> None:
        self.sent.append(request.content)

    # Requests.

    async def post(self, path: str, body: Any, headers: Mapping[str, str] = NOTHING) -> Any:
        """Send ``body`` as its library writes it, as often as the framework does. Return the reply's JSON, or
        else its text.
        """
        lines = {"Content-Type": "application/json", **headers}
        for left in reversed(range(self.TRIES)):
            try:
                response = await self.http.post(self._url(path), content=self.writes(body), headers=lines)
                return json_or_text(response.raise_for_status())
            except httpx.HTTPError as error:
                response_of = getattr(error, "response", None)
                self.failures.append(0 if response_of is None else response_of.status_code)
                if not self.again(error) or not left:
                    raise
                await asyncio.sleep(PAUSE)
        raise AssertionError("there is at least one try")

    def again(self, error: httpx.HTTPError) -> bool:
        """Return True if a request that ended like this is tried again, or raise the client's own error."""
        return True

    async def get(self, path: str, **parameters: str) -> Any:
        response = await self.http.get(self._url(path), params=parameters or None)
        return json_or_text(response.raise_for_status())

    async def healthy(self) -> bool:
        return (await self.http.get(f"{self.base}/health")).status_code == 200

    def key(self, key: str) -> Mapping[str, str]:
        """Return the header for ``key``."""
        return {self.KEY: key} if self.keyed else NOTHING

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        """Return a checked sample of exactly ``tokens`` tokens."""
        raise NotImplementedError

    async def lines(self, path: str, body: Any) -> AsyncIterator[str]:
        """Yield the lines of a stream; to stop earlier closes the connection."""
        content, lines = self.writes(body), {"Content-Type": "application/json"}
        async with self.http.stream("POST", self._url(path), content=content, headers=lines) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line:
                    yield line

    def _url(self, path: str) -> str:
        return path if path.startswith("http") else f"{self.base}{path}"

    # The fleet.

    async def register(self, url: str, **more: Any) -> None:
        body = {"url": url, "worker_type": "regular", **more}
        (await self.http.post(f"{self.base}/workers", json=body)).raise_for_status()

    async def _rows(self) -> dict[str, Any]:
        return {row["url"]: row for row in (await self.get("/workers"))["workers"]}

    async def listed(self) -> list[str]:
        """Return the URLs of the workers as the router spells them."""
        return [*await self._rows()]

    async def leave(self, url: str) -> None:
        id = (await self._rows())[url]["id"]
        (await self.http.delete(f"{self.base}/workers/{id}")).raise_for_status()


def json_or_text(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text


async def polled(done: Callable[[], Awaitable[bool]]) -> None:
    """Return once ``done`` answers True; ask again and again, as clients do."""
    while not await done():  # noqa: ASYNC110
        await asyncio.sleep(PAUSE)
