"""One request of the gateway's own to a worker, and its whole answer.

Owns: sending on a connection of its own, within limits of time and size. Must never enter: what is asked,
what an answer means, requests of clients.

The connection is the data plane's kind: a general client takes 1 ms for each, and would spell queries and
headers in its own way. It is a new one each time, as nothing must be said twice because a kept one had grown
stale, and whether there is one is half of what a probe asks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.errors import UpstreamMalformed
from gateway.fleet.worker import Worker
from gateway.formats.contract import ReplyHead, UpstreamRequest
from gateway.loop.stepper import in_task
from gateway.upstream.connection import Connection
from gateway.upstream.encode import encode_head


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's whole reply."""

    head: ReplyHead
    body: bytes

    @property
    def accepted(self) -> bool:
        return 200 <= self.head.status < 300


async def request_worker(
    worker: Worker, request: UpstreamRequest, *, seconds: float | None, limit: int
) -> Answer:
    """What ``worker`` answers within ``seconds`` (None: whenever it does) and ``limit`` bytes.

    No proxy from the environment is used and no redirect followed. Raises TimeoutError, and as
    ``Pool.connect`` and ``Connection`` do; UpstreamMalformed for an answer over the limit as well.
    """
    async with asyncio.timeout(seconds):
        connection = await in_task(worker.pool.connect(), Connection.close)
        try:
            connection.send(encode_head(request, worker.address), request.body)
            head = await connection.head()
            body = bytearray()
            while part := await connection.read():
                body += part
                if len(body) > limit:
                    raise UpstreamMalformed(f"its answer is over the limit of {limit} bytes")
            return Answer(head, bytes(body))
        finally:
            connection.close()
