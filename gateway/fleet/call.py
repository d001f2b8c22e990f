"""One control call to one worker, and its whole answer.

Owns: what of a client's call goes to the worker, and why there is no answer. Must never enter: a dialect,
which workers are called, what an answer means for a worker.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gateway.errors import GatewayError
from gateway.fleet.client import Answer, request_worker
from gateway.fleet.worker import Worker
from gateway.formats.contract import Headers, UpstreamRequest
from gateway.formats.headers import to_worker


@dataclass(frozen=True, slots=True)
class Call:
    """``target`` is a path and its query, in front of which a worker's own prefix goes. ``headers`` are the
    client's."""

    method: bytes
    target: bytes
    headers: Headers = ()
    body: bytes = b""


class NotAnswered(Exception):
    """There is no whole answer; the text, for a client, says why. The worker may have had the call."""


async def ask_among_others(worker: Worker, call: Call, *, seconds: float | None, limit: int) -> Answer:
    """The same where one client's call goes to several workers: as many are called at once as may be."""
    try:
        async with asyncio.timeout(seconds), worker.quotas.calls:
            return await ask(worker, call, seconds=seconds, limit=limit)
    except TimeoutError as error:
        raise NotAnswered(f"no answer within {seconds:g} s") from error


async def ask(worker: Worker, call: Call, *, seconds: float | None, limit: int) -> Answer:
    """Have ``worker`` answer ``call`` within ``seconds`` (None: whenever it does) and ``limit`` bytes.

    Raises NotAnswered.
    """
    headers = to_worker(call.headers, worker.authorization)
    request = UpstreamRequest(call.method, worker.address.prefix + call.target, headers, call.body)
    try:
        return await request_worker(worker, request, seconds=seconds, limit=limit)
    except GatewayError as error:
        raise NotAnswered(_why(error)) from error
    except TimeoutError as error:
        raise NotAnswered(f"no answer within {seconds:g} s") from error


def _why(error: GatewayError) -> str:
    cause = error.cause
    return (
        f"{error.message}: {cause.strerror}"
        if isinstance(cause, OSError) and cause.strerror
        else error.message
    )
