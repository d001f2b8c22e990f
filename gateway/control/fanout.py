"""Control calls that go to every worker.

Owns: the routes, who is called, the answer made of all answers, and the mark of a pause. Must never enter:
what a call means to an engine, changing a byte of it.

Where the fleet has one worker for a call, or the call names one (``?worker=`` or ``X-Worker-Id``), the reply
is that worker's own, as if it had been called directly. Else it is a summary; ``X-Reply-Shape`` asks for the
other of the two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from gateway.control.pause_calls import paused_resources, resumed_resources
from gateway.control.replies import json_response, parse_worker_json, passthrough_response
from gateway.control.targets import Skipped, find_worker, no_worker_error, parse_call, select_targets
from gateway.control.views import Views
from gateway.control.workers_calls import CallError, ErrorBody, read_body
from gateway.engine_routes import CONTROL_CALLS, ControlCall
from gateway.errors import Draining
from gateway.fleet.client import (
    WorkerCall,
    WorkerCallFailed,
    WorkerReply,
    send_call,
    send_call_within_quota,
)
from gateway.fleet.cordons.pauses import Parts
from gateway.fleet.worker import Worker

log = logging.getLogger(__name__)

#: A worker's answer over this is none, in bytes.
ANSWER_LIMIT = 64 * 1024 * 1024
#: Bytes of a worker's answer that a summary shows as JSON, and characters that it shows of any other.
JSON_LIMIT, TEXT_LIMIT = 64 * 1024, 2000

_CUT = "the gateway is shutting down and waits no longer for the workers, which were sent the call"


class _Ask(Protocol):
    """``send_call`` or ``send_call_within_quota``."""

    async def __call__(
        self, worker: Worker, call: WorkerCall, *, seconds: float | None, limit: int
    ) -> WorkerReply: ...


SHAPE = "x-reply-shape"
SUMMARY, PLAIN = "summary", "plain"


class WorkerAnswer(BaseModel):
    """What one worker answered: ``body`` as JSON if it is, else the start of its text.

    ``status`` is null where there was no whole answer; ``error`` then says why.
    """

    worker: str
    worker_id: str
    status: int | None
    body: Any
    error: str | None


class Passed(BaseModel):
    """A worker that was not called."""

    worker: str
    worker_id: str
    reason: str


class Summary(BaseModel):
    """``success``: each of ``results`` has a status of 2xx and does not say itself that it failed."""

    success: bool
    message: str
    results: list[WorkerAnswer]
    skipped: list[Passed]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One worker's answer, or why there is none."""

    worker: Worker
    answer: WorkerReply | None
    error: str | None = None

    @property
    def status(self) -> int | None:
        return None if self.answer is None else self.answer.head.status

    @property
    def accepted(self) -> bool:
        return self.answer is not None and self.answer.accepted and not _says_failed(self.answer.body)


def reserved() -> tuple[str, ...]:
    """Paths of ``fanout_router``."""
    return tuple(call.path for call in CONTROL_CALLS)


@dataclass(frozen=True, slots=True)
class Limits:
    """``body`` is the largest body of a call in bytes; a worker may take ``seconds``, None: any time."""

    body: int
    seconds: float | None


def fanout_router(views: Views, limits: Limits) -> APIRouter:
    """One route per control call."""
    router = APIRouter(tags=["control"])
    for call in CONTROL_CALLS:
        fanout = _Fanout(call, views, limits)
        whom = "the one worker it is for" if call.single else "every worker"
        for method in call.methods:
            router.add_api_route(
                call.path,
                fanout.handle,
                methods=[method],
                summary=f"Passed on to {whom}",
                response_model=Summary | Any,
                responses=_RESPONSES,
                openapi_extra=_BODY if method == "POST" else None,
            )
    return router


#: A call that is for one worker is answered in that one's own words, whatever they are.
_OWN: dict[str, Any] = {"*/*": {"schema": {}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": _OWN, "description": "All workers accepted it; of one worker, its own reply"},
    404: {"model": ErrorBody | Any, "description": "There is no such worker", "content": _OWN},
    409: {
        "model": ErrorBody | Any,
        "description": "It is for one worker and names none",
        "content": _OWN,
    },
    413: {"model": ErrorBody | Any, "description": "The body is too large", "content": _OWN},
    502: {"model": Summary | Any, "description": "Some worker did not accept it", "content": _OWN},
    503: {
        "model": ErrorBody | Any,
        "description": "There is no worker to call, or the gateway stopped before all had answered",
        "content": _OWN,
    },
    "default": {"description": "What the one worker that it is for answered", "content": _OWN},
}
_BODY: dict[str, Any] = {"requestBody": {"content": {"*/*": {"schema": {}}}}}


class _Fanout:
    """The route of one call."""

    def __init__(self, call: ControlCall, views: Views, limits: Limits) -> None:
        self._call = call
        self._views = views
        self._pauses = views.pauses
        self._limits = limits

    async def handle(self, request: Request) -> Response:
        try:
            sent, name = parse_call(request, self._call.path, await read_body(request, self._limits.body))
            shape = _shape(request)
            workers, skipped, alone = self._whom(name)
            outcomes = await self._views.lifecycle.errand(self._all(workers, sent))
        except CallError as error:
            return error.reply()
        except Draining as error:
            return CallError(error.status, error.code, _CUT).reply()
        accepted = sum(outcome.accepted for outcome in outcomes)
        log.info("%s: accepted by %d of %d workers", self._call.path, accepted, len(outcomes))
        if (shape or (PLAIN if alone else SUMMARY)) == PLAIN and (alone or accepted == len(outcomes)):
            return _plain(outcomes[0])
        return _summary(outcomes, skipped)

    async def _all(self, workers: Sequence[Worker], sent: WorkerCall) -> Sequence[Outcome]:
        kind = self._call.pauses
        # All at once and before any is called, by whichever process or gateway they would get requests.
        added = {} if kind is None else await self._pauses.pause(workers, kind, paused_resources(kind, sent))
        asking = send_call if len(workers) == 1 else send_call_within_quota
        return await asyncio.gather(
            *(self._one(worker, sent, added.get(worker), asking) for worker in workers)
        )

    def _whom(self, name: str | None) -> tuple[Sequence[Worker], Sequence[Skipped], bool]:
        """Who is called, who is passed over, and whether it is for one worker. Raises CallError."""
        if name is not None:
            return [find_worker(self._views.registration, name)], [], True
        targets = select_targets(self._views.fleet.workers, self._call.formats)
        if self._call.single and targets.total > 1:
            raise CallError(
                409,
                "one_worker_only",
                f"{self._call.path} is for one worker, and the fleet has {targets.total}: name it by"
                " ?worker= or X-Worker-Id, its id or its URL",
            )
        if not targets.asked:
            raise no_worker_error(targets)
        return targets.asked, targets.skipped, targets.total == 1

    async def _one(self, worker: Worker, sent: WorkerCall, added: Parts | None, asking: _Ask) -> Outcome:
        """Call one worker. It gets no request from before it is paused until after it is resumed; if it does
        not accept the pause, it gets back what was ``added`` to that."""
        outcome = await self._asked(worker, sent, asking)
        if self._call.pauses is not None and not outcome.accepted:
            await self._pauses.resume(worker, self._call.pauses, added or ())
        if self._call.resumes is not None and outcome.accepted:
            parts, every = resumed_resources(self._call.resumes, sent)
            await self._pauses.resume(worker, self._call.resumes, parts, every=every)
        return outcome

    async def _asked(self, worker: Worker, sent: WorkerCall, asking: _Ask) -> Outcome:
        try:
            answer = await asking(worker, sent, seconds=self._limits.seconds, limit=ANSWER_LIMIT)
        except WorkerCallFailed as error:
            return Outcome(worker, None, str(error))
        return Outcome(worker, answer)


def _shape(request: Request) -> str | None:
    shape = request.headers.get(SHAPE)
    if shape not in (None, SUMMARY, PLAIN):
        raise CallError(400, "invalid_shape", f"X-Reply-Shape must be {SUMMARY} or {PLAIN}")
    return shape


def _plain(outcome: Outcome) -> Response:
    """A worker's own reply."""
    if outcome.answer is None:
        return CallError(502, "worker_failed", f"{outcome.worker.url}: {outcome.error}").reply()
    return passthrough_response(outcome.answer.head, outcome.answer.body)


def _summary(outcomes: Sequence[Outcome], skipped: Iterable[Skipped]) -> Response:
    failed = [outcome for outcome in outcomes if not outcome.accepted]
    summary = Summary(
        success=not failed,
        message=f"accepted by {len(outcomes) - len(failed)} of {len(outcomes)} workers",
        results=[_row(outcome) for outcome in outcomes],
        skipped=[
            Passed(worker=one.worker.url, worker_id=one.worker.id, reason=one.reason) for one in skipped
        ],
    )
    return json_response(summary.model_dump(), _status(outcomes) if failed else 200)


def _status(outcomes: Sequence[Outcome]) -> int:
    """That of a failure: a refusal that all workers agree on is the caller's fault, all else a 502."""
    statuses = {outcome.status for outcome in outcomes}
    (status, *others) = statuses
    return status if status is not None and not others and 400 <= status < 500 else 502


def _row(outcome: Outcome) -> WorkerAnswer:
    worker, answer = outcome.worker, outcome.answer
    body = None if answer is None else _shown(answer.body)
    return WorkerAnswer(
        worker=worker.url, worker_id=worker.id, status=outcome.status, body=body, error=outcome.error
    )


def _shown(body: bytes) -> Any:
    found = _json(body)
    return body[: 4 * TEXT_LIMIT].decode("utf-8", "replace")[:TEXT_LIMIT] if found is _NO_JSON else found


_NO_JSON = object()


def _json(body: bytes) -> Any:
    if len(body) > JSON_LIMIT:
        return _NO_JSON
    try:
        return parse_worker_json(body)
    except ValueError:
        return _NO_JSON


def _says_failed(body: bytes) -> bool:
    """Some engines answer 200 and ``"success": false``."""
    found = _json(body)
    return isinstance(found, dict) and found.get("success") is False
