"""Asking a worker what it is and how it is.

Owns: one question and its answer over HTTP, within limits of time and size. Must never enter: a dialect
(formats say what to ask and read the answers), what an answer means for a worker's state, the data plane.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass

import httpx

from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat, ProbeReply, ProbeRequest, WorkerInfo
from gateway.sockets import is_shortage
from gateway.transport.names import Names

#: A question that takes longer has failed, in seconds, however much of its answer came.
PROBE_TIMEOUT = 5.0
#: An answer over this is none, in bytes.
ANSWER_LIMIT = 4 * 1024 * 1024


class NotAsked(Exception):
    """The gateway has no socket to ask with, which says nothing about the worker."""


class Unreachable(Exception):
    """No TCP connection: nobody listens there now."""


def probe_client(
    tls: ssl.SSLContext | None = None, *, timeout: float = PROBE_TIMEOUT, names: Names | None = None
) -> httpx.AsyncClient:
    """The HTTP client for probes: no proxy from the environment, no redirects, a connection per request.

    ``tls`` is for https workers, None: the system's trust, as on the data plane; ``timeout`` is in seconds.
    """
    transport = _ConnectionEach(tls, names or Names())
    return httpx.AsyncClient(timeout=timeout, transport=transport, trust_env=False, follow_redirects=False)


class _ConnectionEach(httpx.AsyncBaseTransport):
    """Opens a connection for each request and closes it with the reply, or with the request's failure.

    A pool shared by all would lose a connection, open, when a probe is cancelled in an unlucky moment.
    """

    def __init__(self, tls: ssl.SSLContext | None, names: Names) -> None:
        self._tls = tls
        self._names = names

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            *others, last = await self._names.addresses(request.url.host)
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        for address in others:
            try:
                return await self._ask(_sent_to(request, address))
            except httpx.ConnectError:
                continue  # a name may stand for one that nobody listens on
        return await self._ask(_sent_to(request, last))

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        if self._tls is None and request.url.scheme == "https":
            self._tls = ssl.create_default_context()  # not sooner: it reads all certificates of the system
        transport = httpx.AsyncHTTPTransport(verify=self._tls or False, trust_env=False)
        try:
            reply = await transport.handle_async_request(request)
        except BaseException:
            await transport.aclose()
            raise
        return httpx.Response(reply.status_code, headers=reply.headers, stream=_Body(reply, transport))


def _sent_to(request: httpx.Request, address: str) -> httpx.Request:
    """``request`` as it is, its Host and the name its certificate is for included, but for where it goes."""
    host = request.url.host
    if address == host:
        return request
    url = request.url.copy_with(host=address)
    extensions = {**request.extensions, "sni_hostname": host}
    return httpx.Request(
        request.method, url, headers=request.headers, stream=request.stream, extensions=extensions
    )


class _Body(httpx.AsyncByteStream):
    def __init__(self, reply: httpx.Response, transport: httpx.AsyncHTTPTransport) -> None:
        self._reply = reply
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._reply.aiter_raw():
            yield part

    async def aclose(self) -> None:
        await self._transport.aclose()


async def ask(client: httpx.AsyncClient, worker: Worker, question: ProbeRequest) -> ProbeReply | None:
    """One question; None when there was no whole answer in time. Raises Unreachable and NotAsked."""
    headers = [(b"connection", b"close")]
    if worker.authorization is not None:
        headers.append((b"authorization", worker.authorization))
    if question.body is not None:
        headers.append((b"content-type", b"application/json"))
    url = worker.url.rstrip("/") + question.target
    try:
        request = client.build_request(question.method, url, content=question.body, headers=headers)
        # The client's own limit is for each read: a worker that dribbles would never reach it.
        async with asyncio.timeout(client.timeout.read):
            return await _whole(client, request)
    except (httpx.ConnectError, httpx.InvalidURL, UnicodeError) as error:
        if is_shortage(error):
            raise NotAsked("the gateway has no socket left at the moment") from error
        raise Unreachable(str(error) or "connection refused") from error
    except (httpx.HTTPError, TimeoutError):
        return None


async def _whole(client: httpx.AsyncClient, request: httpx.Request) -> ProbeReply | None:
    reply = await client.send(request, stream=True)
    try:
        body = bytearray()
        async for part in reply.aiter_bytes():
            body += part
            if len(body) > ANSWER_LIMIT:
                return None
    finally:
        await reply.aclose()
    return ProbeReply(reply.status_code, bytes(body))


@dataclass(frozen=True, slots=True)
class Description:
    """What the formats made of a worker, by name, and the targets of the questions it did not answer."""

    infos: Mapping[str, WorkerInfo]
    missing: Sequence[str]


async def interview(
    client: httpx.AsyncClient, worker: Worker, formats: Iterable[AnyFormat]
) -> Description | None:
    """Ask all that each format (or only the one the worker was declared to speak) wants to know.

    None: it answered no question at all. Raises Unreachable and NotAsked.
    """
    asked = [format for format in formats if worker.only in (None, format.name)]
    questions = list({(q.method, q.target, q.body): q for format in asked for q in format.probes}.values())
    replies = await asyncio.gather(*(ask(client, worker, each) for each in questions), return_exceptions=True)
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    answers = {
        question.target: reply
        for question, reply in zip(questions, replies, strict=True)
        if isinstance(reply, ProbeReply)
    }
    if not answers:
        return None
    infos = {format.name: format.identify(answers) for format in asked}
    missing = [each.target for each in questions if each.target not in answers]
    return Description({name: info for name, info in infos.items() if info is not None}, missing)
