"""A client of the API server: one page of a list, or the stream of a watch.

Owns: the connection, and the limits of time and size of a request. Must never enter: what an object means,
when a request is repeated.

Why no client library, of those on PyPI in November 2026 that are async (each installed and its source read):
the gateway needs two requests, a list and a watch of one kind of object.

* lightkube 1.0.1 brings a second HTTP stack (httpx2, httpcore2) and generated models. It reads the token
  file on the event loop, decodes a page of any size in one step, and gives a watch no read timeout, so a
  connection that died in silence is never noticed.
* kr8s 0.20.15 brings eleven packages, cryptography among them. Its list does not return the resourceVersion
  from which a watch has to continue, its watch ends when the server closes it, and after a 410 it asks again
  from the version that was just refused. It does read the token in a thread.
* kubernetes_asyncio 36.1.0 brings aiohttp and 48 MB of generated code; importing it takes 65 MB of memory in
  every process of a gateway. It reads the token file on the event loop, asks again from the version that a
  410 has refused, and its watch fails at an event of more than 512 KiB (a pod may have 1.5 MiB).

lightkube and kr8s put no bound on the size of an event, and split events with ``str.splitlines``, which
breaks those with U+0085 in an annotation. None of the three lists again by itself after a 410, spreads
reconnects over time, or obeys ``Retry-After``: that is most of the work here, and would still be ours.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager

import httpx

from gateway.loop.daemon_thread import DaemonThread
from gateway.loop.sockets import tcp_keepalive_options
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.failures import ApiServerUnreachable, refusal
from gateway.stores.kubernetes.objects import Object

#: Seconds to establish a connection.
CONNECT_TIMEOUT = 5.0
#: Bytes of one event. etcd stores no object of more than 1.5 MiB.
EVENT_LIMIT = 16 * 1024 * 1024
#: Bytes of an error reply that are read.
REASON_LIMIT = 64 * 1024

Query = Mapping[str, str]


class Stream:
    """The events of one watch."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    async def read(self) -> list[Object] | None:
        """Return the events that the next bytes complete; None: the server closed the watch.

        Raises ApiServerUnreachable.
        """
        with _translated():
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                return None
        # Not str.splitlines: an annotation may contain characters that Unicode counts as line ends.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > EVENT_LIMIT:
            raise ApiServerUnreachable(f"the API server sent an event of more than {EVENT_LIMIT} bytes")
        return [_parsed(line) for line in lines if line.strip()]


class Api:
    """A connection to the API server with the credentials of the moment it was made."""

    def __init__(self, client: httpx.AsyncClient, server: str) -> None:
        self._client = client
        self._server = server.rstrip("/")

    async def page(self, target: str, query: Query) -> Object:
        """Return one page of a list. Raises Failure."""
        async with self._reply(target, query) as reply:
            with _translated():
                return _parsed(await reply.aread())

    @asynccontextmanager
    async def watch(self, target: str, query: Query) -> AsyncIterator[Stream]:
        """Watch from the resourceVersion in ``query``; the block begins at the head of the reply.

        Raises Failure.
        """
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
    """Connect to the API server. Raises Failure.

    Each watch has a new connection: tokens and certificates are replaced regularly, and a load balancer can
    then choose another API server.
    """
    with closing(DaemonThread("credentials")) as thread:
        tls, token = await thread.run(access.credentials)
    # Uncompressed: the network is near, and a decoder must not delay an event.
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "tito-gateway"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    transport = httpx.AsyncHTTPTransport(
        verify=tls or False, trust_env=False, socket_options=tcp_keepalive_options()
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
        raise ApiServerUnreachable(
            f"the API server cannot be reached: {error or type(error).__name__}"
        ) from error


def _parsed(text: bytes) -> Object:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ApiServerUnreachable("the API server sent invalid JSON") from None
    if not isinstance(value, dict):
        raise ApiServerUnreachable("the API server sent JSON that is not an object")
    return value
