"""One control call to one worker, and its whole answer.

Owns: sending a client's bytes on a connection of their own, within limits of time and size. Must never enter:
a dialect, which workers are called, what an answer means for a worker.

The connection is the data plane's kind, as a general client would spell queries and headers in its own way.
It is a new one each time: a control call must not be said twice because a kept one had grown stale.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.drive import apart
from gateway.errors import GatewayError
from gateway.fleet.worker import Worker
from gateway.formats.base import Headers, ReplyHead, UpstreamRequest
from gateway.formats.headers import to_worker
from gateway.transport.http1 import Connection
from gateway.upstream import head_of


@dataclass(frozen=True, slots=True)
class Call:
    """``target`` is a path and its query, in front of which a worker's own prefix goes. ``headers`` are the
    client's."""

    method: bytes
    target: bytes
    headers: Headers = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's whole reply."""

    head: ReplyHead
    body: bytes

    @property
    def accepted(self) -> bool:
        return 200 <= self.head.status < 300


class NotAnswered(Exception):
    """There is no whole answer; the text, for a client, says why. The worker may have had the call."""


async def ask(worker: Worker, call: Call, *, seconds: float | None, limit: int) -> Answer:
    """Have ``worker`` answer ``call`` within ``seconds`` (None: whenever it does) and ``limit`` bytes.

    No proxy from the environment is used and no redirect followed. Raises NotAnswered.
    """
    try:
        async with asyncio.timeout(seconds):
            connection = await apart(worker.pool.connect(), Connection.close)
            try:
                return await _answer(connection, worker, call, limit)
            finally:
                connection.close()
    except GatewayError as error:
        raise NotAnswered(_why(error)) from error
    except TimeoutError as error:
        raise NotAnswered(f"no answer within {seconds:g} s") from error


async def _answer(connection: Connection, worker: Worker, call: Call, limit: int) -> Answer:
    headers = to_worker(call.headers, worker.authorization)
    target = worker.address.prefix + call.target
    request = UpstreamRequest(call.method, target, headers, call.body)
    connection.send(head_of(request, worker.address), call.body)
    head = await connection.head()
    body = bytearray()
    while part := await connection.read():
        body += part
        if len(body) > limit:
            raise NotAnswered(f"its answer is over the limit of {limit} bytes")
    return Answer(head, bytes(body))


def _why(error: GatewayError) -> str:
    cause = error.cause
    return (
        f"{error.message}: {cause.strerror}"
        if isinstance(cause, OSError) and cause.strerror
        else error.message
    )
