"""One call to one member of an etcd cluster, over a connection of its own.

Owns: the connection, the message formats of etcd's JSON API, and the errors of a call. Must never enter: the
choice of a member, authentication, keys and what they mean.

Each call has its own connection: a call that times out leaves nothing behind in a pool, and the next call
does not get a dead connection.
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

#: The most bytes of one line of a stream; etcd's limit for a request is 1.5 MiB (--max-request-bytes).
LINE_LIMIT = 64 * 1024 * 1024
#: TCP keepalive: a probe after 5 s without data, then each 2 s, 3 of them. A member that stopped without
#: closing its connections is detected in about ten seconds.
_SOCKET_OPTIONS = [*tcp_keepalive_options(5, 2, 3), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]


class EtcdError(Exception):
    """A member answered with an error; ``code`` is its gRPC status code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class EtcdUnreachable(EtcdError):
    """A call that no member answered in time, or only with errors after which a retry may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 14)  # UNAVAILABLE


async def open_call(
    url: str, body: Mapping[str, Any], tls: ssl.SSLContext | None, token: str | None
) -> httpx.Response:
    """Return a reply with status 200 whose body is not read yet. Raises EtcdError. The caller sets a timeout.

    ``tls`` is for https, ``token`` the token of a login.
    """
    # Otherwise a member without a leader keeps a watch open and sends nothing.
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
        raise EtcdUnreachable(_message(error)) from error
    raise _error_of_reply(reply.status_code, text)


async def read_message(endpoint: str, reply: httpx.Response) -> dict[str, Any]:
    """Return the only message of a reply from ``endpoint``. Raises EtcdError."""
    try:
        return _parse(endpoint, await reply.aread())
    except httpx.HTTPError as error:
        raise EtcdUnreachable(_message(error)) from error
    finally:
        await reply.aclose()


async def messages(endpoint: str, reply: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the messages that ``endpoint`` streams. Ends with an EtcdError only."""
    try:
        async with aclosing(_lines(reply)) as lines:
            async for line in lines:
                message = _parse(endpoint, line)
                if "error" in message:
                    raise _stream_error(endpoint, message["error"])
                yield _result(message)
    except httpx.HTTPError as error:
        raise EtcdUnreachable(f"{endpoint}: {_message(error)}") from error
    raise EtcdUnreachable(f"{endpoint}: the stream ended")


class _Body(httpx.AsyncByteStream):
    """The body of a reply; closing it closes the connection."""

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
    """Yield the lines of a body, each as soon as it is complete. The end of the body ends a line as well."""
    parts: list[bytes] = []
    size = 0
    async for data in reply.aiter_bytes():
        *complete, rest = data.split(b"\n")
        for line in complete:
            yield b"".join([*parts, line])
            parts, size = [], 0
        if rest:
            parts.append(rest)
            size += len(rest)
        if size > LINE_LIMIT:
            raise EtcdUnreachable("a message of the stream is over the limit of size")
    if parts:
        yield b"".join(parts)


def _parse(endpoint: str, text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise EtcdUnreachable(f"{endpoint}: the reply is not one of etcd")
    return message


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a message of a stream. Raises EtcdError if it cancels the watch.

    A cancellation because of compaction is returned: the watch handles it.
    """
    result = message.get("result")
    if not isinstance(result, dict):
        raise EtcdUnreachable("a message of the stream has no result")
    if result.get("cancel_reason") and not result.get("compact_revision"):
        raise EtcdError(f"the watch was cancelled: {result['cancel_reason']}", 2)
    return result


def _error_of_reply(status: int, text: bytes) -> EtcdError:
    """Return the error of a reply with another status than 200."""
    try:
        message = json.loads(text)
        return EtcdError(str(message["message"]), int(message["code"]))
    except (ValueError, RecursionError, KeyError, TypeError):
        return EtcdUnreachable(
            f"status {status}, which is not the JSON API of etcd (is its grpc-gateway on?)"
        )


def _stream_error(endpoint: str, error: object) -> EtcdError:
    """Return the error that ends a stream; its format differs between versions of etcd."""
    if isinstance(error, dict):
        code = error.get("grpc_code", error.get("code", 2))
        return EtcdError(str(error.get("message", "")), code if isinstance(code, int) else 2)
    return EtcdError(f"{endpoint}: {error}", 2)


def _message(error: BaseException) -> str:
    """Return the text of ``error``, or of its cause: errors of the HTTP library often have no text."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
