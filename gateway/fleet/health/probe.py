"""Asking a worker what it is and how it is.

Owns: what becomes of one question, and of all that the formats have. Must never enter: a dialect (formats say
what to ask and read the answers), what an answer means for a worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.errors import ConnectFailed, OutOfSockets, UpstreamIncomplete, UpstreamMalformed
from gateway.fleet.client import request_worker
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import UpstreamRequest
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo
from gateway.upstream.tls_faults import tls_fault

#: A question that takes longer has failed, in seconds, however much of its answer came.
PROBE_TIMEOUT = 5.0
#: An answer over this is none, in bytes.
ANSWER_LIMIT = 4 * 1024 * 1024


class NotAsked(Exception):
    """The gateway has no socket to ask with, which says nothing about the worker."""


class Unreachable(Exception):
    """There is nobody to ask: no TCP connection, or no TLS on it. The text says which, and why.

    ``unreachable``: it is not there at all, so that whoever answers next is another process.
    """

    def __init__(self, why: str, *, unreachable: bool = False) -> None:
        super().__init__(why)
        self.unreachable = unreachable


async def ask(
    worker: Worker, question: ProbeRequest, *, patience: float = PROBE_TIMEOUT, first_contact: bool = False
) -> ProbeReply | None:
    """One question, once it may be asked; None when there was no whole answer within ``patience`` seconds.
    ``first_contact``: nobody may be there.

    Raises Unreachable and NotAsked.
    """
    try:
        async with worker.quotas.first_contacts if first_contact else worker.quotas.probes:
            answer = await request_worker(
                worker, _request(worker, question), seconds=patience, limit=ANSWER_LIMIT
            )
        return ProbeReply(answer.head.status, answer.body)
    except OutOfSockets as error:
        raise NotAsked(error.message) from error
    except ConnectFailed as error:
        if isinstance(error.cause, TimeoutError):
            return None
        raise Unreachable(_why(error), unreachable=tls_fault(error.cause) is None) from error
    except UpstreamIncomplete as error:
        if (fault := _broken_off(worker, error)) is not None:
            raise Unreachable(fault) from error
        return None
    except (UpstreamMalformed, TimeoutError):
        return None


def _request(worker: Worker, question: ProbeRequest) -> UpstreamRequest:
    headers = [(b"connection", b"close"), (b"accept-encoding", b"identity")]
    if worker.authorization is not None:
        headers.append((b"authorization", worker.authorization))
    if question.body is not None:
        headers.append((b"content-type", b"application/json"))
    target = worker.address.prefix + question.target.encode()
    return UpstreamRequest(question.method.encode(), target, headers, question.body or b"")


def _broken_off(worker: Worker, error: UpstreamIncomplete) -> str | None:
    """What is wrong, if it is the trust between the two; else None.

    A server that misses a client certificate finds out after the handshake, and some just hang up then.
    """
    fault = tls_fault(error.cause)
    if fault is None and worker.address.tls and worker.state in (WorkerState.JOINING, WorkerState.DEAD):
        return "it broke off after the TLS handshake; it may want a client certificate, or another one"
    return fault


def _why(error: ConnectFailed) -> str:
    cause = error.cause
    if (fault := tls_fault(cause)) is not None:
        return fault
    return f"nobody listens: {getattr(cause, 'strerror', None) or str(cause or error.message)}"


@dataclass(frozen=True, slots=True)
class Description:
    """What the formats made of a worker, by name, and the targets of the questions it did not answer."""

    infos: Mapping[str, WorkerInfo]
    missing: Sequence[str]


async def interview(
    worker: Worker,
    formats: Iterable[AnyFormat],
    *,
    patience: float = PROBE_TIMEOUT,
    first_contact: bool = False,
) -> Description | None:
    """Ask all that each format (or only the one the worker was declared to speak) wants to know.

    ``first_contact``: the worker may not be there, so one question goes first and the others only once it
    was taken. None: it answered no question at all. Raises Unreachable and NotAsked.
    """
    asked = [format for format in formats if worker.only in (None, format.name)]
    questions = list({(q.method, q.target, q.body): q for format in asked for q in format.probes}.values())
    first = 1 if first_contact else 0
    replies = [
        *await _ask_all(worker, questions[:first], patience, first_contact=True),
        *await _ask_all(worker, questions[first:], patience, first_contact=False),
    ]
    answers = {
        question.target: reply
        for question, reply in zip(questions, replies, strict=True)
        if reply is not None
    }
    if not answers:
        return None
    infos = {format.name: format.identify(answers) for format in asked}
    missing = [each.target for each in questions if each.target not in answers]
    return Description({name: info for name, info in infos.items() if info is not None}, missing)


async def _ask_all(
    worker: Worker, questions: Sequence[ProbeRequest], patience: float, *, first_contact: bool
) -> Sequence[ProbeReply | None]:
    asking = (ask(worker, question, patience=patience, first_contact=first_contact) for question in questions)
    replies = []
    for reply in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(reply, BaseException):
            raise reply
        replies.append(reply)
    return replies
