"""A client's own abort calls.

Owns: the routes at the paths each dialect uses, and the summary. Must never enter: a dialect, how a worker is
told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from gateway.control.bodies import body_within
from gateway.control.views import AbortResult, AbortView
from gateway.errors import GatewayError, RequestTooLarge
from gateway.formats.base import AnyFormat, ErrorReply, Headers
from gateway.security.door import caller_of
from gateway.security.guard import Realm, challenge

#: Largest body of an abort call, in bytes.
BODY_LIMIT = 1024 * 1024

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
    502: {"model": AbortSummary, "description": "Some worker could not be told"},
}


def reserved(paths: Paths, formats: Iterable[AnyFormat]) -> tuple[str, ...]:
    """Paths of ``aborts_router``."""
    return tuple(path for format in formats for path in paths.get(format.name, ()))


def aborts_router(paths: Paths, formats: Iterable[AnyFormat], aborter: AbortView) -> APIRouter:
    """One route per path that ``paths`` gives, by name, to one of ``formats``."""
    router = APIRouter(tags=["aborts"])
    for format in formats:
        for path in paths.get(format.name, ()):
            router.add_api_route(
                path,
                _Abort(format, aborter).handle,
                methods=["POST"],
                summary="Abort running requests at the workers that hold them",
                response_model=AbortSummary,
                responses=_RESPONSES,
                openapi_extra=_BODY,
            )
    return router


class _Abort:
    """The route of one format."""

    def __init__(self, format: AnyFormat, aborter: AbortView) -> None:
        self._format: AnyFormat = format
        self._aborter = aborter

    async def handle(self, request: Request) -> Response:
        try:
            target = self._format.aborted_ids(await _body(request))
            if target.everything:  # those of everybody
                caller_of(request.scope).require(Realm.CONTROL)
        except GatewayError as error:
            return _rendered(self._format.render(error), challenge(error))
        return _summary(await self._aborter.abort(target, self._format))


async def _body(request: Request) -> bytes:
    body = await body_within(request, BODY_LIMIT)
    if body is None:
        raise RequestTooLarge(f"the body of an abort call is over the limit of {BODY_LIMIT} bytes")
    return body


def _rendered(error: ErrorReply, extra: Headers) -> Response:
    lines = [*error.headers, *extra]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in lines}
    return Response(error.body, error.status, headers)


def _summary(results: Sequence[AbortResult]) -> Response:
    rows = [AbortedOn(worker=one.worker, aborted=one.aborted, error=one.error) for one in results]
    summary = AbortSummary(aborted=sum(row.aborted for row in rows), results=rows)
    failed = any(row.error is not None for row in rows)
    return JSONResponse(summary.model_dump(), 502 if failed else 200)
