"""Requests of the gateway's own to one worker: probes, control calls and calls that abort everything.

The abort of one exchange is not sent here but by ``gateway.proxy.aborts``, on pooled connections.

Owns: sending on a connection of its own, limits of time and size, what of a client's control call is sent.
Must never enter: a dialect, which workers are called, what a reply means for a worker, generate requests.

The connection is of the data plane's kind: a general HTTP client takes about 1 ms for each request, and would
normalise queries and headers. It is a new one each time, for two reasons: a kept connection may have been
closed by the worker, and nothing may be sent twice; and a probe asks whether a connection can be made at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.errors import ConnectFailed, GatewayError, UpstreamMalformed
from gateway.fleet.worker import Worker
from gateway.formats.contract import Headers, ReplyHead, UpstreamRequest
from gateway.formats.headers import to_worker
from gateway.loop.stepper import in_task
from gateway.upstream.connection import Connection
from gateway.upstream.encode import encode_head


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A complete reply of a worker."""

    head: ReplyHead
    body: bytes

    @property
    def accepted(self) -> bool:
        return 200 <= self.head.status < 300


@dataclass(frozen=True, slots=True)
class WorkerCall:
    """A client's call to workers. ``target`` is a path and its query, without a worker's prefix."""

    method: bytes
    target: bytes
    headers: Headers = ()
    body: bytes = b""


class WorkerCallFailed(Exception):
    """There is no complete reply; the text says why, for a client. The worker may have had the call."""


async def request_worker(
    worker: Worker, request: UpstreamRequest, *, seconds: float | None, limit: int
) -> WorkerReply:
    """Send ``request`` and return the reply, of at most ``limit`` bytes, within ``seconds`` (None: no limit).

    No proxy from the environment is used and no redirect is followed. Raises TimeoutError, UpstreamMalformed
    for a larger reply, and what ``Pool.connect`` and ``Connection`` raise.
    """
    async with asyncio.timeout(seconds):
        connection = await in_task(worker.pool.connect(), Connection.close)
        try:
            connection.send(encode_head(request, worker.pool.own_lines), request.body)
            head = await connection.head()
            body = bytearray()
            while part := await connection.read():
                body += part
                if len(body) > limit:
                    raise UpstreamMalformed(f"its answer is over the limit of {limit} bytes")
            return WorkerReply(head, bytes(body))
        finally:
            connection.close()


class WorkerCalls:
    """Sends the calls of clients. ``on_refused`` is called with each worker that could not be reached."""

    def __init__(self, on_refused: Callable[[Worker], None]) -> None:
        self._on_refused = on_refused

    async def send(
        self, worker: Worker, call: WorkerCall, *, seconds: float | None, limit: int
    ) -> WorkerReply:
        """Send ``call`` to ``worker`` and return its reply, with the limits of ``request_worker``.

        Raises WorkerCallFailed.
        """
        headers = to_worker(call.headers, worker.authorization)
        request = UpstreamRequest(call.method, worker.address.prefix + call.target, headers, call.body)
        try:
            return await request_worker(worker, request, seconds=seconds, limit=limit)
        except GatewayError as error:
            if isinstance(error, ConnectFailed):
                self._on_refused(worker)
            cause = error.cause
            known = isinstance(cause, OSError) and cause.strerror
            raise WorkerCallFailed(f"{error.message}: {known}" if known else error.message) from error
        except TimeoutError as error:
            raise WorkerCallFailed(f"no answer within {seconds:g} s") from error

    async def send_within_quota(
        self, worker: Worker, call: WorkerCall, *, seconds: float | None, limit: int
    ) -> WorkerReply:
        """Do as ``send``, but wait for the quota of calls first: for a call that goes to several workers."""
        try:
            async with asyncio.timeout(seconds), worker.quotas.of_fleet.calls:
                return await self.send(worker, call, seconds=seconds, limit=limit)
        except TimeoutError as error:
            raise WorkerCallFailed(f"no answer within {seconds:g} s") from error
