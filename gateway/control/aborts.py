"""A client's own abort calls.

Owns: the routes at the paths each dialect uses, who is told what, and the summary. Must never enter: a
dialect, how an exchange is ended.

What names ids goes to the workers that hold them, in the words that the gateway gave these ids. What names
everything goes as it is to every worker of the dialect as well: it may run what did not come through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.control.bodies import read_within
from gateway.control.targets import parse_call
from gateway.control.views import AbortResult, AbortView, FleetView, LifecycleView
from gateway.errors import GatewayError, RequestTooLarge
from gateway.fleet.client import WorkerCall, WorkerCallFailed, send_call_within_quota
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import ErrorReply, Headers
from gateway.formats.optional import AbortTarget
from gateway.proxy.aborts import ABORT_TIMEOUT
from gateway.security.auth_middleware import caller_of
from gateway.security.guard import AccessScope, challenge

#: Largest body of an abort call, in bytes.
BODY_LIMIT = 1024 * 1024
#: A worker that answers more was not told, in bytes.
ANSWER_LIMIT = 64 * 1024
#: Nothing runs there, or nobody listens.
_AWAY = frozenset({WorkerState.JOINING, WorkerState.DEAD, WorkerState.GONE})

Paths = Mapping[str, Sequence[str]]

_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
}


class AbortedOn(BaseModel):
    """How many requests one worker was told to stop; ``error`` says why it was not, else null.

    ``worker`` is null for requests that were not sent to one yet.
    """

    worker: str | None
    aborted: int
    error: str | None


class AbortSummary(BaseModel):
    """An id that nothing runs under is no failure: ``aborted`` is then 0."""

    aborted: int
    results: list[AbortedOn]


_ERROR: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"content": _ERROR, "description": "It names nothing, in the words of the format"},
    413: {"content": _ERROR, "description": "The body is too large"},
    207: {"model": AbortSummary, "description": "Some workers could not be told, others were"},
    502: {"model": AbortSummary, "description": "No worker could be told"},
}


def reserved(paths: Paths, formats: Iterable[AnyFormat]) -> tuple[str, ...]:
    """Paths of ``aborts_router``."""
    return tuple(path for format in formats for path in paths.get(format.name, ()))


def aborts_router(
    paths: Paths, formats: Iterable[AnyFormat], aborter: AbortView, fleet: FleetView, lifecycle: LifecycleView
) -> APIRouter:
    """One route per path that ``paths`` gives, by name, to one of ``formats``."""
    router = APIRouter(tags=["aborts"])
    for format in formats:
        for path in paths.get(format.name, ()):
            router.add_api_route(
                path,
                _Abort(format, aborter, fleet, lifecycle).handle,
                methods=["POST"],
                summary="Abort running requests at the workers that hold them",
                response_model=AbortSummary,
                responses=_RESPONSES,
                openapi_extra=_BODY,
            )
    return router


class _Abort:
    """The route of one format."""

    def __init__(
        self, format: AnyFormat, aborter: AbortView, fleet: FleetView, lifecycle: LifecycleView
    ) -> None:
        self._format: AnyFormat = format
        self._aborter = aborter
        self._fleet = fleet
        self._lifecycle = lifecycle

    async def handle(self, request: Request) -> Response:
        try:
            body = await _body(request)
            target = self._format.aborted_ids(body)
            if target.everything:  # those of everybody
                caller_of(request.scope).require(AccessScope.CONTROL)
            return await self._lifecycle.errand(self._done(request, body, target))
        except GatewayError as error:
            return _rendered(self._format.render(error), challenge(error))

    async def _done(self, request: Request, body: bytes, target: AbortTarget) -> Response:
        own = self._aborter.abort(target, self._format)
        if not target.everything:
            return _summary(_rows(await own))
        sent, _ = parse_call(request, request.url.path, body)
        # It was read as JSON, whatever its client called it; an engine may refuse it under another name.
        headers = [line for line in sent.headers if line[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        rows, errors = await asyncio.gather(own, self._tell_all(replace(sent, headers=headers)))
        return _summary(_rows(rows, errors))

    async def _tell_all(self, call: WorkerCall) -> Mapping[str, str | None]:
        """Worker's URL -> why it was not told, None: it was."""
        name = self._format.name
        workers = [each for each in self._fleet.workers if name in each.infos and each.state not in _AWAY]
        errors = await asyncio.gather(*(_tell(worker, call) for worker in workers))
        return {worker.url: error for worker, error in zip(workers, errors, strict=True)}


async def _tell(worker: Worker, call: WorkerCall) -> str | None:
    try:
        answer = await send_call_within_quota(worker, call, seconds=ABORT_TIMEOUT, limit=ANSWER_LIMIT)
    except WorkerCallFailed as error:
        return str(error)
    return None if answer.accepted else f"status {answer.head.status}"


async def _body(request: Request) -> bytes:
    body = await read_within(request, BODY_LIMIT)
    if body is None:
        raise RequestTooLarge(f"the body of an abort call is over the limit of {BODY_LIMIT} bytes")
    return body


def _rendered(error: ErrorReply, extra: Headers) -> Response:
    lines = [*error.headers, *extra]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in lines}
    return Response(error.body, error.status, headers)


def _rows(
    results: Sequence[AbortResult], told: Mapping[str, str | None] = MappingProxyType({})
) -> list[AbortedOn]:
    """One for each worker that was told anything; one that was told to end all needs no word on each."""
    rows = [AbortedOn(worker=one.worker, aborted=one.aborted, error=one.error) for one in results]
    seen = {row.worker for row in rows}
    for row in rows:
        if row.worker is not None and row.worker in told:
            row.error = told[row.worker]
    return rows + [
        AbortedOn(worker=url, aborted=0, error=why) for url, why in told.items() if url not in seen
    ]


def _summary(rows: Sequence[AbortedOn]) -> Response:
    summary = AbortSummary(aborted=sum(row.aborted for row in rows), results=list(rows))
    failed = [row.error is not None for row in rows]
    status = 200 if not any(failed) else 502 if all(failed) else 207
    return JSONResponse(summary.model_dump(), status)
