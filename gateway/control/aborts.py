"""The abort routes of clients.

Owns: the routes at the paths of each format, which workers are called, and the summary. Must never enter: a
dialect, how an exchange is ended.

A call that names ids goes to the workers that run them, with their dispatch ids. A call that aborts
everything is also forwarded unchanged to every worker of the format, because a worker may run requests that
did not come through this gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from gateway.control.bodies import read_within
from gateway.control.replies import json_response
from gateway.control.targets import asked_as, parse_call
from gateway.control.views import AbortResult, Views
from gateway.errors import GatewayError, RequestTooLarge
from gateway.fleet.client import WorkerCall, WorkerCallFailed
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.optional import AbortTarget
from gateway.proxy.aborts import ABORT_TIMEOUT
from gateway.security.auth_middleware import caller_of
from gateway.security.guard import AccessScope, challenge

#: Largest body of an abort call, in bytes.
BODY_LIMIT = 1024 * 1024
#: Largest reply of a worker to an abort call, in bytes; a larger one counts as an error.
ANSWER_LIMIT = 64 * 1024
#: States of workers that run nothing or cannot be reached.
_NOT_CALLED = frozenset({WorkerState.JOINING, WorkerState.DEAD, WorkerState.GONE})

_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
}


class AbortedOn(BaseModel):
    """How many requests one worker was asked to abort; ``error`` is null, or says why it could not be asked.

    ``worker`` is null for requests that were not sent to a worker yet.
    """

    worker: str | None
    aborted: int
    error: str | None


class AbortSummary(BaseModel):
    """The result of an abort call. An id that is not in flight is no failure: ``aborted`` is then 0."""

    aborted: int
    results: list[AbortedOn]


_ERROR: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"content": _ERROR, "description": "The call names no request; an error body of the dialect"},
    413: {"content": _ERROR, "description": "The body is too large"},
    207: {"model": AbortSummary, "description": "Some workers could not be asked, others were"},
    502: {"model": AbortSummary, "description": "No worker could be asked"},
}


def aborts_router(formats: Iterable[AnyFormat], views: Views) -> APIRouter:
    """Return one route per abort path of ``formats``."""
    router = APIRouter(tags=["aborts"])
    for format in formats:
        for path in format.routes.aborts:
            router.add_api_route(
                path,
                _Abort(format, views).handle,
                methods=["POST"],
                summary="Abort running requests at the workers that run them",
                response_model=AbortSummary,
                responses=_RESPONSES,
                openapi_extra=_BODY,
            )
    return router


class _Abort:
    """The route of one format."""

    def __init__(self, format: AnyFormat, views: Views) -> None:
        self._format: AnyFormat = format
        self._views = views

    async def handle(self, request: Request) -> Response:
        try:
            body = await read_within(request, BODY_LIMIT)
            if body is None:
                raise RequestTooLarge(f"the body of an abort call is larger than {BODY_LIMIT} bytes")
            target = self._format.aborted_ids(body)
            if target.everything:  # the requests of all clients
                caller_of(request.scope).require(AccessScope.CONTROL)
            return await self._views.lifecycle.run_control_call(self._abort(request, body, target))
        except GatewayError as error:
            reply = self._format.render(error)
            lines = [*reply.headers, *challenge(error)]
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in lines}
            return Response(reply.body, reply.status, headers)

    async def _abort(self, request: Request, body: bytes, target: AbortTarget) -> Response:
        own = self._views.aborter.abort(target, self._format)
        if not target.everything:
            return _summary(_rows(await own))
        sent, _ = parse_call(request, request.url.path, body)
        # The body was read as JSON whatever its content type; an engine may refuse any other content type.
        headers = [line for line in sent.headers if line[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        rows, errors = await asyncio.gather(own, self._abort_everything(replace(sent, headers=headers)))
        return _summary(_rows(rows, errors))

    async def _abort_everything(self, call: WorkerCall) -> Mapping[str, str | None]:
        """Forward ``call`` to every server of the format. Return URL -> error, None if it was accepted."""
        name = self._format.name
        workers: list[Worker] = []
        for each in self._views.fleet.workers:
            if name in each.infos and each.state not in _NOT_CALLED and asked_as(each, workers) is None:
                workers.append(each)
        errors = await asyncio.gather(*(self._forward(worker, call) for worker in workers))
        return {worker.url: error for worker, error in zip(workers, errors, strict=True)}

    async def _forward(self, worker: Worker, call: WorkerCall) -> str | None:
        send = self._views.calls.send_within_quota
        try:
            answer = await send(worker, call, seconds=ABORT_TIMEOUT, limit=ANSWER_LIMIT)
        except WorkerCallFailed as error:
            return str(error)
        return None if answer.accepted else f"status {answer.head.status}"


def _rows(
    results: Sequence[AbortResult], forwarded: Mapping[str, str | None] = MappingProxyType({})
) -> list[AbortedOn]:
    """Return one row for each worker; the error of a forwarded call replaces those of single ids."""
    rows = [AbortedOn(worker=result.worker, aborted=result.aborted, error=result.error) for result in results]
    seen = {row.worker for row in rows}
    for row in rows:
        if row.worker is not None and row.worker in forwarded:
            row.error = forwarded[row.worker]
    return rows + [
        AbortedOn(worker=url, aborted=0, error=error) for url, error in forwarded.items() if url not in seen
    ]


def _summary(rows: Sequence[AbortedOn]) -> Response:
    summary = AbortSummary(aborted=sum(row.aborted for row in rows), results=list(rows))
    failed = [row.error is not None for row in rows]
    status = 200 if not any(failed) else 502 if all(failed) else 207
    return json_response(summary.model_dump(), status)
