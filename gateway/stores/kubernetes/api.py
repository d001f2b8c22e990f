"""Asking the API server.

Owns: one connection's worth of requests: a page of a list, the stream of a watch; and the limits of time and
size of both. Must never enter: what an object means, when to ask again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager

import httpx

from gateway.loop.daemon_thread import DaemonThread
from gateway.loop.sockets import tcp_keepalive_options
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.failures import Unreachable, refusal
from gateway.stores.kubernetes.objects import Object

#: Seconds until a connection must stand.
CONNECT_TIMEOUT = 5.0
#: Bytes of one event. etcd keeps no object of more than 1.5 MiB.
EVENT_LIMIT = 16 * 1024 * 1024
#: Bytes of a refusal that are read for its reason.
REASON_LIMIT = 64 * 1024

Query = Mapping[str, str]


class Stream:
    """The events of one watch."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    async def read(self) -> list[Object] | None:
        """The events that came whole with the next bytes, in order; None: the server closed the watch.

        Raises Unreachable.
        """
        with _translated():
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                return None
        # Not by str.splitlines: an annotation may hold what Unicode calls the end of a line.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > EVENT_LIMIT:
            raise Unreachable(f"the API server sent an event of more than {EVENT_LIMIT} bytes")
        return [_parsed(line) for line in lines if line.strip()]


class Api:
    """Requests with the credentials of the moment it was made."""

    def __init__(self, client: httpx.AsyncClient, server: str) -> None:
        self._client = client
        self._server = server.rstrip("/")

    async def page(self, target: str, query: Query) -> Object:
        """One page of a list. Raises Failure."""
        async with self._reply(target, query) as reply:
            with _translated():
                return _parsed(await reply.aread())

    @asynccontextmanager
    async def watch(self, target: str, query: Query) -> AsyncIterator[Stream]:
        """The events from ``query``'s place on; entered once the server has agreed. Raises Failure."""
        async with self._reply(target, {**query, "watch": "true"}) as reply:
            yield Stream(reply.aiter_bytes())

    @asynccontextmanager
    async def _reply(self, target: str, query: Query) -> AsyncIterator[httpx.Response]:
        with _translated():
            request = self._client.build_request("GET", self._server + target, params=query)
            reply = await self._client.send(request, stream=True)
        try:
            if reply.status_code != httpx.codes.OK:
                raise refusal(reply.status_code, reply.headers.get("retry-after", ""), await _reason(reply))
            yield reply
        finally:
            await reply.aclose()


@asynccontextmanager
async def connected(access: ApiServerAccess) -> AsyncIterator[Api]:
    """Something to ask with. Made anew for each watch, as tokens and certificates are replaced all the time,
    and several API servers share the load of those that come. Raises Failure."""
    with closing(DaemonThread("credentials")) as thread:
        trust, token = await thread.run(access.credentials)
    # Not compressed: it is a neighbour, and an event must not wait in a decoder.
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "tito-gateway"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    transport = httpx.AsyncHTTPTransport(
        verify=trust or False, trust_env=False, socket_options=tcp_keepalive_options()
    )
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT)
    async with httpx.AsyncClient(
        transport=transport, headers=headers, timeout=timeout, trust_env=False
    ) as client:
        yield Api(client, access.server)


async def _reason(reply: httpx.Response) -> bytes:
    body = b""
    with _translated():
        async for part in reply.aiter_bytes():
            body += part
            if len(body) > REASON_LIMIT:
                break
    return body


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        raise Unreachable(f"the API server cannot be reached: {error or type(error).__name__}") from error


def _parsed(text: bytes) -> Object:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Unreachable("the API server sent what is not JSON") from None
    if not isinstance(value, dict):
        raise Unreachable("the API server sent what is no object")
    return value
