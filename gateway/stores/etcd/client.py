"""A client of etcd's JSON API over HTTP: failover between endpoints, and authentication.

Owns: how a call reaches a member of the cluster. Must never enter: keys and what they mean.

Why no client library, of those on PyPI in November 2026 that are async and support Python 3.11 to 3.13: aetcd
1.0.0 (June 2026, its first stable release) knows one endpoint and ends a watch with its connection; etcd3aio
0.3.0 goes on after a compaction as if nothing had been lost; etcd-client-py 0.5.1 wraps compiled code and has
no resume. etcd3-py, etcdpy and etcetra had no release for over two years, etcd-sdk-python is not async. All
but one bring grpcio, 18 MB, for seven calls; and resume, compaction, failover and lost leases, which are the
point here, would still be ours to write. The JSON API is part of every etcd since 3.4 and on by default, and
httpx is a dependency already.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.stores.etcd.wire import EtcdError, EtcdUnreachable, messages, open_call, read_message

#: gRPC status codes after which another member, or the same one later, may succeed.
_TRY_ELSEWHERE = frozenset({1, 2, 4, 8, 10, 13, 14, 15})
_UNAUTHENTICATED = 16
_AUTH_IS_OFF = 9
#: Texts of an expired login, which has no status code of its own.
_EXPIRED_LOGIN = ("invalid auth token", "revision in header is old")


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The endpoints and credentials of a cluster.

    ``tls`` is for https endpoints; None: the system's default.
    """

    endpoints: Sequence[str]
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)


class EtcdClient:
    """A client of one cluster. It first tries the endpoint that answered last."""

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._endpoints = [endpoint.rstrip("/") for endpoint in access.endpoints]
        self._tls = access.tls
        if self._tls is None and any(endpoint.startswith("https:") for endpoint in self._endpoints):
            self._tls = ssl.create_default_context()
        self._token: str | None = None

    @property
    def endpoint(self) -> str:
        """The endpoint that is tried first."""
        return self._endpoints[0]

    def avoid(self, endpoint: str) -> None:
        """Try ``endpoint`` after all others from now on."""
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)

    async def call(
        self, path: str, body: Mapping[str, Any], *, until: float, only: str | None = None
    ) -> dict[str, Any]:
        """Return the reply to one call. Raises EtcdError, at the latest at ``until`` (the event loop's time).

        ``only`` is the one endpoint to try. Otherwise the call may reach two members, if the first answers
        too late, so it must be idempotent.
        """
        faults: list[str] = []
        endpoints = [only] if only else list(self._endpoints)
        for tries_left, endpoint in zip(range(len(endpoints), 0, -1), endpoints, strict=True):
            try:
                async with asyncio.timeout(_remaining(until) / tries_left):
                    return await self._ask_logged_in(endpoint, path, body)
            except TimeoutError:
                faults.append(f"{endpoint}: no answer in time")
            except EtcdError as error:
                if error.code not in _TRY_ELSEWHERE:
                    raise
                faults.append(f"{endpoint}: {error}")
            self.avoid(endpoint)
        raise EtcdUnreachable("; ".join(faults))

    @asynccontextmanager
    async def stream(
        self, endpoint: str, path: str, body: Mapping[str, Any], *, until: float
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]], None]:
        """Yield the messages that ``endpoint`` sends in reply. Raises EtcdError.

        The head of the reply must arrive before ``until``. No other endpoint is tried.
        """
        try:
            async with asyncio.timeout(_remaining(until)):
                await self._log_in(endpoint)
                reply = await self._open(endpoint, path, body)
        except TimeoutError:
            self.avoid(endpoint)
            raise EtcdUnreachable(f"{endpoint}: no answer in time") from None
        except EtcdError as error:
            self._note_failure(endpoint, error)
            raise
        received = self._messages(endpoint, reply)
        try:
            yield received
        finally:
            await received.aclose()
            await reply.aclose()

    def _note_failure(self, endpoint: str, error: EtcdError) -> None:
        if _login_expired(error):
            self._token = None
        elif error.code in _TRY_ELSEWHERE:
            self.avoid(endpoint)

    async def _ask_logged_in(self, endpoint: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        await self._log_in(endpoint)
        try:
            return await self._ask(endpoint, path, body)
        except EtcdError as error:
            if self._token is None or not _login_expired(error):
                raise
        self._token = None  # tokens expire after five minutes, and with a restart of the member
        await self._log_in(endpoint)
        return await self._ask(endpoint, path, body)

    async def _log_in(self, endpoint: str) -> None:
        if self._access.user is None or self._token is not None:
            return
        login = {"name": self._access.user, "password": self._access.password}
        try:
            reply = await self._ask(endpoint, "/v3/auth/authenticate", login)
        except EtcdError as error:
            if error.code == _AUTH_IS_OFF:
                self._token = ""
                return
            raise
        self._token = str(reply.get("token", ""))

    async def _ask(self, endpoint: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await read_message(endpoint, await self._open(endpoint, path, body))

    async def _open(self, endpoint: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        return await open_call(endpoint + path, body, self._tls, self._token)

    async def _messages(self, endpoint: str, reply: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async with aclosing(messages(endpoint, reply)) as received:
                async for message in received:
                    yield message
        except EtcdError as error:
            self._note_failure(endpoint, error)
            raise


def within(seconds: float) -> float:
    """Return the event loop's time in ``seconds`` seconds."""
    return asyncio.get_running_loop().time() + seconds


def _remaining(until: float) -> float:
    return until - asyncio.get_running_loop().time()


def _login_expired(error: EtcdError) -> bool:
    return error.code == _UNAUTHENTICATED or any(text in str(error) for text in _EXPIRED_LOGIN)
