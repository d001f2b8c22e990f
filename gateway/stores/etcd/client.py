"""etcd's own JSON API over HTTP: endpoints, failing over between them, logging in.

Owns: how a call reaches some member of the cluster, and what went wrong with it. Must never enter: keys and
what they mean.

Why no client library, of those on PyPI in November 2026 that are async and support Python 3.11 to 3.13: aetcd
1.0.0 (June 2026, its first stable release) knows one endpoint and ends a watch with its connection; etcd3aio
0.3.0 goes on after a compaction as if nothing had been lost; etcd-client-py 0.5.1 wraps compiled code and has
no resume. etcd3-py, etcdpy and etcetra had no release for over two years, etcd-sdk-python is not async. All
but one bring grpcio, 18 MB, for seven calls; and resume, compaction, failover and lost leases, which are the
point here, would still be ours to write. The JSON API is part of every etcd since 3.4 and on by default, and
httpx is here anyway.

Each call has a connection of its own: a call that is given up can then leave nothing behind in a pool, and
the next one cannot meet a dead connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

#: A line of a stream over this is none, in bytes: etcd's own limit for a value is 1.5 MiB.
LINE_LIMIT = 64 * 1024 * 1024
#: Seconds of silence before the kernel asks whether the member is still there, between two questions, and how
#: many may stay unanswered: a member that vanished without a word is found out in about ten seconds.
_IDLE, _INTERVAL, _COUNT = 5, 2, 3

#: What members answer when another one, or the same one later, may do better; gRPC's numbers.
_TRY_ELSEWHERE = frozenset({1, 2, 4, 8, 10, 13, 14, 15})
_UNAUTHENTICATED = 16
_AUTH_IS_OFF = 9
#: What a login that has to be done again is called, where its number does not tell.
_STALE_LOGIN = ("invalid auth token", "revision in header is old")


class EtcdError(Exception):
    """A member refused the call; ``code`` is gRPC's number for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(EtcdError):
    """No member answered in time, or none that could."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 14)


@dataclass(frozen=True, slots=True)
class Access:
    """Where a cluster is and how to get in. ``tls`` is for https endpoints, None: the system's trust."""

    endpoints: Sequence[str]
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)


class EtcdClient:
    """Calls to a cluster. Whichever endpoint answered last is asked first."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._endpoints = [endpoint.rstrip("/") for endpoint in access.endpoints]
        self._tls = access.tls
        self._token: str | None = None

    @property
    def endpoint(self) -> str:
        """The one that is asked first."""
        return self._endpoints[0]

    def avoid(self, endpoint: str) -> None:
        """Ask ``endpoint`` after all others from now on."""
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)

    async def call(
        self, path: str, body: Mapping[str, Any], *, until: float, only: str | None = None
    ) -> dict[str, Any]:
        """The reply to one call, which must come before the event loop's time is ``until``. Raises EtcdError.

        ``only`` names the one endpoint to ask. Else a call may reach two members, when the first is slow to
        answer: it has to bear that.
        """
        faults: list[str] = []
        endpoints = [only] if only else list(self._endpoints)
        for tries_left, endpoint in zip(range(len(endpoints), 0, -1), endpoints, strict=True):
            try:
                async with asyncio.timeout(_left(until) / tries_left):
                    return await self._logged_in(endpoint, path, body)
            except TimeoutError:
                faults.append(f"{endpoint}: no answer in time")
            except EtcdError as error:
                if error.code not in _TRY_ELSEWHERE:
                    raise
                faults.append(f"{endpoint}: {error}")
            self.avoid(endpoint)
        raise Unreachable("; ".join(faults))

    @asynccontextmanager
    async def stream(
        self, endpoint: str, path: str, body: Mapping[str, Any], *, until: float
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]], None]:
        """The messages that ``endpoint`` sends in reply, for as long as it does. Raises EtcdError.

        ``until`` is for the head of the reply, as above. No other endpoint is tried: whoever calls again does
        that.
        """
        try:
            async with asyncio.timeout(_left(until)):
                await self._log_in(endpoint)
                reply = await self._open(endpoint, path, body)
        except TimeoutError:
            self.avoid(endpoint)
            raise Unreachable(f"{endpoint}: no answer in time") from None
        except EtcdError as error:
            self._lost(endpoint, error)
            raise
        messages = self._messages(endpoint, reply)
        try:
            yield messages
        finally:
            await messages.aclose()
            await reply.aclose()

    async def _messages(self, endpoint: str, reply: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async with aclosing(_lines(reply)) as lines:
                async for line in lines:
                    message = _parse(endpoint, line)
                    if "error" in message:
                        raise _error(endpoint, message["error"])
                    yield _result(message)
        except httpx.HTTPError as error:
            self.avoid(endpoint)
            raise Unreachable(f"{endpoint}: {_words(error)}") from error
        except EtcdError as error:
            self._lost(endpoint, error)
            raise
        self.avoid(endpoint)
        raise Unreachable(f"{endpoint}: it ended the stream")

    def _lost(self, endpoint: str, error: EtcdError) -> None:
        if _is_stale(error):
            self._token = None
        elif error.code in _TRY_ELSEWHERE:
            self.avoid(endpoint)

    async def _logged_in(self, endpoint: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        await self._log_in(endpoint)
        try:
            return await self._ask(endpoint, path, body)
        except EtcdError as error:
            if self._token is None or not _is_stale(error):
                raise
        self._token = None  # tokens end after five minutes and with a restart of the member
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
        reply = await self._open(endpoint, path, body)
        try:
            return _parse(endpoint, await reply.aread())
        except httpx.HTTPError as error:
            raise Unreachable(_words(error)) from error
        finally:
            await reply.aclose()

    async def _open(self, endpoint: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """A reply of 200, its body not read yet."""
        # A member that has lost its leader would otherwise keep a watch open and tell nothing.
        headers = {"Grpc-Metadata-hasleader": "true", "Connection": "close"}
        if self._token:
            headers["Authorization"] = self._token
        try:
            request = httpx.Request("POST", endpoint + path, json=body, headers=headers)
            request.extensions["timeout"] = {}  # who calls has a limit for all of it
            reply = await _send(self._transport(endpoint), request)
            if reply.status_code == 200:
                return reply
            try:
                text = await reply.aread()
            finally:
                await reply.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise Unreachable(_words(error)) from error
        raise _refusal(reply.status_code, text)

    def _transport(self, endpoint: str) -> httpx.AsyncHTTPTransport:
        if self._tls is None and endpoint.startswith("https:"):
            self._tls = ssl.create_default_context()
        return httpx.AsyncHTTPTransport(
            verify=self._tls or False, trust_env=False, socket_options=_socket_options()
        )


class _Body(httpx.AsyncByteStream):
    """A reply's body that closes the connection with itself."""

    def __init__(self, reply: httpx.Response, transport: httpx.AsyncHTTPTransport) -> None:
        self._reply = reply
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._reply.aiter_raw():
            yield part

    async def aclose(self) -> None:
        await self._transport.aclose()


async def _send(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
    try:
        reply = await transport.handle_async_request(request)
    except BaseException:
        await transport.aclose()
        raise
    stream = _Body(reply, transport)
    return httpx.Response(reply.status_code, headers=reply.headers, stream=stream, request=request)


def within(seconds: float) -> float:
    """The event loop's time ``seconds`` from now."""
    return asyncio.get_running_loop().time() + seconds


def _left(until: float) -> float:
    return until - asyncio.get_running_loop().time()


def _socket_options() -> list[tuple[int, int, int]]:
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", _IDLE), ("TCP_KEEPINTVL", _INTERVAL), ("TCP_KEEPCNT", _COUNT)):
        if hasattr(socket, name):  # not on every system
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


async def _lines(reply: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Its body, line by line, each as soon as it is whole. An end without a newline ends a line as well."""
    parts: list[bytes] = []
    size = 0
    async for data in reply.aiter_bytes():
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join([*parts, line])
            parts, size = [], 0
        if rest:
            parts.append(rest)
            size += len(rest)
        if size > LINE_LIMIT:
            raise Unreachable("it sent a message without an end")
    if parts:
        yield b"".join(parts)


def _parse(endpoint: str, text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise Unreachable(f"{endpoint}: its answer is not that of an etcd")
    return message


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    """What a message of a stream holds. Raises EtcdError where that is the end of a watch, with a reason;
    compaction is for the watch to judge."""
    result = message.get("result")
    if not isinstance(result, dict):
        raise Unreachable("a message of the stream holds nothing")
    if result.get("cancel_reason") and not result.get("compact_revision"):
        raise EtcdError(f"the watch was ended: {result['cancel_reason']}", 2)
    return result


def _refusal(status: int, text: bytes) -> EtcdError:
    """What a reply with another status than 200 says."""
    try:
        message = json.loads(text)
        return EtcdError(str(message["message"]), int(message["code"]))
    except (ValueError, RecursionError, KeyError, TypeError):
        return Unreachable(f"status {status}, which is not the JSON API of etcd (is its grpc-gateway on?)")


def _error(endpoint: str, error: object) -> EtcdError:
    """What a stream says before it ends; the shape has changed between versions."""
    if isinstance(error, dict):
        code = error.get("grpc_code", error.get("code", 2))
        return EtcdError(str(error.get("message", "")), code if isinstance(code, int) else 2)
    return EtcdError(f"{endpoint}: {error}", 2)


def _is_stale(error: EtcdError) -> bool:
    return error.code == _UNAUTHENTICATED or any(words in str(error) for words in _STALE_LOGIN)


def _words(error: BaseException) -> str:
    """What ``error`` says, or else what led to it: the HTTP library often leaves it to that."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
