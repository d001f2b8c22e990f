"""One call to one member of an etcd cluster, over a connection of its own.

Owns: the connection, the shapes of etcd's JSON API, and what went wrong with a call. Must never enter: which
member is asked, logging in, keys and what they mean.

Each call has a connection of its own: a call that is given up can then leave nothing behind in a pool, and
the next one cannot meet a dead connection.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx

from gateway.loop.sockets import tcp_keepalive_options

#: A line of a stream over this is none, in bytes: etcd's own limit for a value is 1.5 MiB.
LINE_LIMIT = 64 * 1024 * 1024
#: Seconds of silence before the kernel asks whether the member is still there, between two questions, and how
#: many may stay unanswered: a member that vanished without a word is found out in about ten seconds.
_SOCKET_OPTIONS = [*tcp_keepalive_options(5, 2, 3), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]


class EtcdError(Exception):
    """A member refused the call; ``code`` is gRPC's number for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(EtcdError):
    """No member answered in time, or none that could."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 14)


async def open_call(
    url: str, body: Mapping[str, Any], tls: ssl.SSLContext | None, token: str | None
) -> httpx.Response:
    """A reply of 200 to ``body``, its own body not read yet; who asks has a limit for all of it.

    ``tls`` is for https, ``token`` what a login gave. Raises EtcdError.
    """
    # A member that has lost its leader would otherwise keep a watch open and tell nothing.
    headers = {"Grpc-Metadata-hasleader": "true", "Connection": "close"}
    if token:
        headers["Authorization"] = token
    try:
        request = httpx.Request("POST", url, json=body, headers=headers)
        request.extensions["timeout"] = {}
        transport = httpx.AsyncHTTPTransport(
            verify=tls or False, trust_env=False, socket_options=_SOCKET_OPTIONS
        )
        reply = await _send(transport, request)
        if reply.status_code == 200:
            return reply
        try:
            text = await reply.aread()
        finally:
            await reply.aclose()
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise Unreachable(_words(error)) from error
    raise _refusal(reply.status_code, text)


async def whole(endpoint: str, reply: httpx.Response) -> dict[str, Any]:
    """The one message that ``endpoint`` replied. Raises EtcdError."""
    try:
        return _parse(endpoint, await reply.aread())
    except httpx.HTTPError as error:
        raise Unreachable(_words(error)) from error
    finally:
        await reply.aclose()


async def messages(endpoint: str, reply: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    """The messages that ``endpoint`` sends; it never ends but by an EtcdError."""
    try:
        async with aclosing(_lines(reply)) as lines:
            async for line in lines:
                message = _parse(endpoint, line)
                if "error" in message:
                    raise _error(endpoint, message["error"])
                yield _result(message)
    except httpx.HTTPError as error:
        raise Unreachable(f"{endpoint}: {_words(error)}") from error
    raise Unreachable(f"{endpoint}: it ended the stream")


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


def _words(error: BaseException) -> str:
    """What ``error`` says, or else what led to it: the HTTP library often leaves it to that."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
