"""The requests of a probe to one worker, and their answers.

Owns: the result of one probe request, and of all those that the formats have. Must never enter: a dialect
(formats say what to ask and read the answers), what an answer means for a worker's state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.errors import ConnectFailed, LoopDetected, OutOfSockets, UpstreamIncomplete, UpstreamMalformed
from gateway.fleet.client import request_worker
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import UpstreamRequest
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo
from gateway.upstream.tls_faults import tls_fault

#: How long a probe request and its complete answer may take, in seconds.
PROBE_TIMEOUT = 5.0
#: Largest answer in bytes; a larger one counts as none.
ANSWER_LIMIT = 4 * 1024 * 1024


class Looped(Exception):
    """The URL leads back to this gateway. The text says so."""

    def __init__(self) -> None:
        super().__init__("it is this gateway, or leads back to it")


class NotAsked(Exception):
    """The gateway has no socket left for the request, which says nothing about the worker."""


class Unreachable(Exception):
    """There is no TCP connection to the worker, or no TLS on it. The text says which, and why.

    ``nothing_listens``: there is no process at the URL, so that the next one to answer is a new one.
    """

    def __init__(self, why: str, *, nothing_listens: bool = False) -> None:
        super().__init__(why)
        self.nothing_listens = nothing_listens


async def ask(
    worker: Worker,
    request: ProbeRequest,
    *,
    answer_timeout: float = PROBE_TIMEOUT,
    first_contact: bool = False,
) -> ProbeReply | None:
    """Send one probe request, once its quota allows it. Return the answer; None without a complete one within
    ``answer_timeout`` seconds. ``first_contact``: the worker may not be there.

    Raises Unreachable, NotAsked and Looped.
    """
    try:
        quotas = worker.quotas.of_fleet
        async with quotas.first_contacts if first_contact else quotas.probes:
            answer = await request_worker(
                worker, _request(worker, request), seconds=answer_timeout, limit=ANSWER_LIMIT
            )
        if answer.head.status == LoopDetected.status:
            raise Looped
        return ProbeReply(answer.head.status, answer.body)
    except OutOfSockets as error:
        raise NotAsked(error.message) from error
    except ConnectFailed as error:
        if isinstance(error.cause, TimeoutError):
            return None
        raise Unreachable(_why(error), nothing_listens=tls_fault(error.cause) is None) from error
    except UpstreamIncomplete as error:
        if (fault := _broken_off(worker, error)) is not None:
            raise Unreachable(fault) from error
        return None
    except (UpstreamMalformed, TimeoutError):
        return None


def _request(worker: Worker, request: ProbeRequest) -> UpstreamRequest:
    headers = [(b"connection", b"close"), (b"accept-encoding", b"identity")]
    if worker.authorization is not None:
        headers.append((b"authorization", worker.authorization))
    if request.body is not None:
        headers.append((b"content-type", b"application/json"))
    target = worker.address.prefix + request.target.encode()
    return UpstreamRequest(request.method.encode(), target, headers, request.body or b"")


def _broken_off(worker: Worker, error: UpstreamIncomplete) -> str | None:
    """Return what is wrong if the two ends do not trust each other; else None.

    A server finds out after the handshake that a client certificate is missing, and some just close then.
    """
    fault = tls_fault(error.cause)
    if fault is None and worker.address.tls and worker.state in (WorkerState.JOINING, WorkerState.DEAD):
        return "it broke off after the TLS handshake; it may want a client certificate, or another one"
    return fault


def _why(error: ConnectFailed) -> str:
    cause = error.cause
    if (fault := tls_fault(cause)) is not None:
        return fault
    return f"nothing listens: {getattr(cause, 'strerror', None) or str(cause or error.message)}"


@dataclass(frozen=True, slots=True)
class Description:
    """What the formats found out about a worker, by format, and the targets of the unanswered requests."""

    infos: Mapping[str, WorkerInfo]
    missing: Sequence[str]


async def interview(
    worker: Worker,
    formats: Iterable[AnyFormat],
    *,
    answer_timeout: float = PROBE_TIMEOUT,
    first_contact: bool = False,
) -> Description | None:
    """Send the probe requests of each format, or only of the one that the worker was declared to speak, then
    the details of those that recognise it.

    ``first_contact``: the worker may not be there, so one request goes first and the others only after
    it was answered. Return None if it answered no request. Raises Unreachable, NotAsked and Looped.
    """
    asked = [format for format in formats if worker.declared_format in (None, format.name)]
    requests = list(
        {
            (request.method, request.target, request.body): request
            for format in asked
            for request in format.probes
        }.values()
    )
    first = 1 if first_contact else 0
    replies = [
        *await _ask_all(worker, requests[:first], answer_timeout, first_contact=True),
        *await _ask_all(worker, requests[first:], answer_timeout, first_contact=False),
    ]
    answers = {
        request.target: reply for request, reply in zip(requests, replies, strict=True) if reply is not None
    }
    if not answers:
        return None
    infos = {format.name: format.identify(answers) for format in asked}
    missing = [each.target for each in requests if each.target not in answers]
    for format in asked:
        if infos[format.name] is not None and format.details:
            found = await _ask_all(worker, format.details, answer_timeout, first_contact=False)
            details = list(zip(format.details, found, strict=True))
            missing += [request.target for request, reply in details if reply is None]
            infos[format.name] = format.identify(
                answers | {request.target: reply for request, reply in details if reply is not None}
            )
    return Description({name: info for name, info in infos.items() if info is not None}, missing)


async def _ask_all(
    worker: Worker, requests: Sequence[ProbeRequest], answer_timeout: float, *, first_contact: bool
) -> Sequence[ProbeReply | None]:
    asking = (
        ask(worker, request, answer_timeout=answer_timeout, first_contact=first_contact)
        for request in requests
    )
    replies = []
    for reply in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(reply, BaseException):
            raise reply
        replies.append(reply)
    return replies
