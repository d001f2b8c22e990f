"""The fan-out of control calls to every worker.

Owns: the routes, which workers are called, the summary of their replies, and the cordon of a paused worker.
Must never enter: what a call means to an engine, a change of its bytes.

If the fleet has one worker for a call, or the call names one (``?worker=`` or ``X-Worker-Id``), the client
gets that worker's own reply. Otherwise it gets a summary. The header ``X-Reply-Shape`` selects one of the
two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from gateway.catalog import SharedCall
from gateway.control.pause_calls import paused_resources, resumed_resources
from gateway.control.replies import json_response, parse_worker_json, passthrough_response
from gateway.control.targets import Skipped, find_worker, no_worker_error, parse_call, select_targets
from gateway.control.views import Views
from gateway.control.workers_calls import CallError, ErrorBody, read_body
from gateway.errors import Draining
from gateway.fleet.client import WorkerCall, WorkerCallFailed, WorkerReply
from gateway.fleet.cordons import Reasons
from gateway.fleet.worker import Worker
from gateway.formats.routes import Recipients

log = logging.getLogger(__name__)

#: Largest reply of a worker in bytes; a larger one counts as a failure.
ANSWER_LIMIT = 64 * 1024 * 1024
#: Largest JSON reply that a summary contains, in bytes, and how much it contains of other text, in
#: characters.
JSON_LIMIT, TEXT_LIMIT = 64 * 1024, 2000

_SHUTTING_DOWN = (
    "the gateway is shutting down and no longer waits for the workers, to which the call was sent"
)


class _Send(Protocol):
    """The signature of the methods of ``WorkerCalls``."""

    async def __call__(
        self, worker: Worker, call: WorkerCall, *, seconds: float | None, limit: int
    ) -> WorkerReply: ...


SHAPE = "x-reply-shape"
SUMMARY, PLAIN = "summary", "plain"


class WorkerAnswer(BaseModel):
    """The reply of one worker. ``body`` is its JSON, or the start of its text if it is no JSON.

    ``status`` is null if there was no complete reply; ``error`` then says why.
    """

    worker: str
    worker_id: str
    status: int | None
    body: Any
    error: str | None


class SkippedWorker(BaseModel):
    """A worker that was not called."""

    worker: str
    worker_id: str
    reason: str


class Summary(BaseModel):
    """``success`` is true if each of ``results`` has a 2xx status and no ``"success": false`` in its body."""

    success: bool
    message: str
    results: list[WorkerAnswer]
    skipped: list[SkippedWorker]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reply of one worker, or the reason why there is none."""

    worker: Worker
    answer: WorkerReply | None
    error: str | None = None

    @property
    def status(self) -> int | None:
        return None if self.answer is None else self.answer.head.status

    @property
    def accepted(self) -> bool:
        return self.answer is not None and self.answer.accepted and not _says_failed(self.answer.body)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest body of a call in bytes, and the seconds a worker may take (None: no limit)."""

    body: int
    seconds: float | None


def fanout_router(calls: Iterable[SharedCall], views: Views, limits: Limits) -> APIRouter:
    """Return one route for each of ``calls`` that is sent to all workers or to a named one."""
    router = APIRouter(tags=["control"])
    for shared in calls:
        call = shared.call
        if call.to is Recipients.ANY:
            continue
        fanout = _Fanout(shared, views, limits)
        recipient = "the worker it names" if call.to is Recipients.ONE else "every worker"
        for method in call.methods:
            router.add_api_route(
                call.path,
                fanout.handle,
                methods=[method],
                summary=f"Forwarded to {recipient}",
                response_model=Summary | Any,
                responses=_RESPONSES,
                openapi_extra=_BODY if method == "POST" else None,
            )
    return router


#: The reply to a call for one worker is that worker's own, whatever it is.
_ANY_REPLY: dict[str, Any] = {"*/*": {"schema": {}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": _ANY_REPLY, "description": "All workers accepted it; of one worker, its own reply"},
    404: {"model": ErrorBody | Any, "description": "There is no such worker", "content": _ANY_REPLY},
    409: {
        "model": ErrorBody | Any,
        "description": "It is for one worker and names none",
        "content": _ANY_REPLY,
    },
    413: {"model": ErrorBody | Any, "description": "The body is too large", "content": _ANY_REPLY},
    502: {"model": Summary | Any, "description": "A worker did not accept it", "content": _ANY_REPLY},
    503: {
        "model": ErrorBody | Any,
        "description": "There is no worker to call, or the gateway stopped before all workers had replied",
        "content": _ANY_REPLY,
    },
    "default": {"description": "The reply of the one worker it was sent to", "content": _ANY_REPLY},
}
_BODY: dict[str, Any] = {"requestBody": {"content": {"*/*": {"schema": {}}}}}


class _Fanout:
    """The route of one control call."""

    def __init__(self, shared: SharedCall, views: Views, limits: Limits) -> None:
        self._call, self._formats = shared
        self._views = views
        self._pauses = views.pauses
        self._limits = limits

    async def handle(self, request: Request) -> Response:
        try:
            sent, name = parse_call(request, self._call.path, await read_body(request, self._limits.body))
            shape = request.headers.get(SHAPE)
            if shape not in (None, SUMMARY, PLAIN):
                raise CallError(400, "invalid_shape", f"X-Reply-Shape must be {SUMMARY} or {PLAIN}")
            workers, skipped, single = self._targets(name)
            outcomes = await self._views.lifecycle.run_control_call(self._all(workers, sent))
        except CallError as error:
            return error.reply()
        except Draining as error:
            return CallError(error.status, error.code, _SHUTTING_DOWN).reply()
        accepted = sum(outcome.accepted for outcome in outcomes)
        log.info("%s: accepted by %d of %d workers", self._call.path, accepted, len(outcomes))
        if (shape or (PLAIN if single else SUMMARY)) == PLAIN and (single or accepted == len(outcomes)):
            return _own_reply(outcomes[0])
        return _summary(outcomes, skipped)

    async def _all(self, workers: Sequence[Worker], sent: WorkerCall) -> Sequence[Outcome]:
        kind = self._call.pauses
        # All are cordoned before the first is called, in every process and gateway that could send them
        # requests. So are the other workers that are the same server.
        entries = [entry for worker in workers for entry in (worker, *worker.other_entries)]
        added = {} if kind is None else await self._pauses.pause(entries, kind, paused_resources(kind, sent))
        calls = self._views.calls
        send = calls.send if len(workers) == 1 else calls.send_within_quota
        return await asyncio.gather(*(self._one(worker, sent, added, send) for worker in workers))

    def _targets(self, name: str | None) -> tuple[Sequence[Worker], Sequence[Skipped], bool]:
        """Return the workers to call, those to skip, and True if the call is for one worker.

        Raise CallError.
        """
        if name is not None:
            return [find_worker(self._views.registration, name)], [], True
        targets = select_targets(self._views.fleet.workers, self._formats)
        if self._call.to is Recipients.ONE and targets.servers > 1:
            raise CallError(
                409,
                "one_worker_only",
                f"{self._call.path} is for one worker, and the fleet has {targets.servers}: name it by"
                " ?worker= or X-Worker-Id, its id or its URL",
            )
        if not targets.asked:
            raise no_worker_error(targets)
        return targets.asked, targets.skipped, targets.total == 1

    async def _one(
        self, worker: Worker, sent: WorkerCall, added: Mapping[Worker, Reasons], send: _Send
    ) -> Outcome:
        """Call one worker. What follows holds for all entries of its server.

        A worker is cordoned from before it is paused until after it is resumed. If it does not accept the
        pause, the resources that this call ``added`` to its cordon are removed again.
        """
        try:
            answer = await send(worker, sent, seconds=self._limits.seconds, limit=ANSWER_LIMIT)
            outcome = Outcome(worker, answer)
        except WorkerCallFailed as error:
            outcome = Outcome(worker, None, str(error))
        for entry in (worker, *worker.other_entries):
            await self._follow(entry, sent, added.get(entry, ()), accepted=outcome.accepted)
        return outcome

    async def _follow(
        self, worker: Worker, sent: WorkerCall, added: Collection[str], *, accepted: bool
    ) -> None:
        """Do what follows from a call that ``worker`` accepted or not."""
        if self._call.pauses is not None and not accepted:
            await self._pauses.resume(worker, self._call.pauses, added)
        if self._call.resumes is not None and accepted:
            parts, every = resumed_resources(self._call.resumes, sent)
            await self._pauses.resume(worker, self._call.resumes, parts, every=every)
        if self._call.changes and accepted:
            await self._views.describe(worker)


def _own_reply(outcome: Outcome) -> Response:
    """Return a worker's own reply."""
    if outcome.answer is None:
        return CallError(502, "worker_failed", f"{outcome.worker.url}: {outcome.error}").reply()
    return passthrough_response(outcome.answer.head, outcome.answer.body)


def _summary(outcomes: Sequence[Outcome], skipped: Iterable[Skipped]) -> Response:
    failed = [outcome for outcome in outcomes if not outcome.accepted]
    statuses = {outcome.status for outcome in outcomes}
    (status, *others) = statuses
    # A refusal of all workers with one 4xx status is the fault of the client; any other failure is a 502.
    refused = status is not None and not others and 400 <= status < 500
    summary = Summary(
        success=not failed,
        message=f"accepted by {len(outcomes) - len(failed)} of {len(outcomes)} workers",
        results=[_row(outcome) for outcome in outcomes],
        skipped=[
            SkippedWorker(worker=each.worker.url, worker_id=each.worker.id, reason=each.reason)
            for each in skipped
        ],
    )
    failure = status if refused and status is not None else 502
    return json_response(summary.model_dump(), failure if failed else 200)


def _row(outcome: Outcome) -> WorkerAnswer:
    worker, body = outcome.worker, None
    if outcome.answer is not None:
        text = outcome.answer.body
        body = _json(text)
        if body is _NO_JSON:
            body = text[: 4 * TEXT_LIMIT].decode("utf-8", "replace")[:TEXT_LIMIT]
    return WorkerAnswer(
        worker=worker.url, worker_id=worker.id, status=outcome.status, body=body, error=outcome.error
    )


_NO_JSON = object()


def _json(body: bytes) -> Any:
    if len(body) > JSON_LIMIT:
        return _NO_JSON
    try:
        return parse_worker_json(body)
    except ValueError:
        return _NO_JSON


def _says_failed(body: bytes) -> bool:
    """Return True for the JSON member ``"success": false``, which some engines send with status 200."""
    found = _json(body)
    return isinstance(found, dict) and found.get("success") is False
