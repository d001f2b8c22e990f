"""The workers API: routes that list, register, remove and cordon workers.

Owns: those routes, also under the names other routers use, and their replies. Must never enter: registration,
states, a request to a worker. No route waits for a worker, so that each replies within a second.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from gateway.control.replies import Failure, add_get_route, json_response
from gateway.control.views import RegistrationView, Views
from gateway.control.workers_calls import (
    CallError,
    ErrorBody,
    call_fields,
    ignored,
    parse_record,
    possible_urls,
    worker_keys,
)
from gateway.control.workers_rows import (
    CardEntry,
    WorkerEntry,
    WorkerList,
    card_entry,
    compact_json,
    render_list,
    worker_row,
)
from gateway.fleet.registration import RoleNotServed, UrlNotAllowed
from gateway.fleet.roster import models_of
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker, id_of
from gateway.stores.base import ReadOnlyStore, StoreUnavailable

log = logging.getLogger(__name__)

PATH = "/workers"
ONE = "/workers/{key:path}"
CARD = f"{ONE}/card"
CORDON, UNCORDON, DRAIN = f"{ONE}/cordon", f"{ONE}/uncordon", f"{ONE}/drain"
#: Older names of CORDON and UNCORDON.
HOLD, OPEN = f"{ONE}/hold", f"{ONE}/open"
ADD, LIST, REMOVE = "/add_worker", "/list_workers", "/remove_worker"
PATHS = (PATH, ONE, CARD, CORDON, UNCORDON, HOLD, OPEN, DRAIN, ADD, LIST, REMOVE)

_BODY: dict[str, Any] = {
    "requestBody": {"content": {"application/json": {"schema": {"type": "object", "required": ["url"]}}}}
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    # An id that holds a line end matches no route, and gets the 404 of an unknown path.
    status: {"model": ErrorBody | Failure if status == 404 else ErrorBody, "description": text}
    for status, text in {
        400: "The call cannot be understood",
        403: "The URL may not be registered",
        404: "There is no such worker, or it does not serve the model",
        405: "The store is read-only: workers are registered elsewhere",
        413: "The body is too large",
        422: "Workers of this role cannot be served",
        503: "The store cannot be reached",
    }.items()
}


class Accepted(BaseModel):
    """The reply to an accepted change. ``worker_id`` is always the same for one URL."""

    status: str
    worker_id: str
    url: str
    location: str
    message: str


class Urls(BaseModel):
    """The URLs of all workers except dead and draining ones, as they were spelled first."""

    urls: list[str]


def workers_router(views: Views) -> APIRouter:
    """Return the router of the workers API. The event stream must be added to the application before it."""
    router = APIRouter(tags=["workers"])
    listed, changes = _Listing(views), _Changes(views.registration)
    add_get_route(
        router, PATH, listed.all, summary="All workers, their state and load", response_model=WorkerList
    )
    add_get_route(router, LIST, listed.urls, summary="URLs of all workers", response_model=Urls)
    add_get_route(
        router,
        CARD,
        listed.card,
        summary="The card of a worker, or of one of its models: what is known of it, and from where",
        response_model=CardEntry,
        responses=_REFUSALS,
    )
    add_get_route(
        router, ONE, listed.one, summary="One worker", response_model=WorkerEntry, responses=_REFUSALS
    )
    routes: tuple[tuple[str, str, int, Callable[..., Any], str], ...] = (
        ("POST", PATH, 202, changes.add, "Register a worker, or replace its record"),
        ("POST", ADD, 200, changes.add, "The same as POST /workers; the URL may be in the query"),
        ("POST", REMOVE, 200, changes.remove, "Drain and remove a worker; an unknown one is no error"),
        ("POST", CORDON, 200, changes.cordon, "Cordon a worker: it gets no new requests"),
        ("POST", UNCORDON, 200, changes.uncordon, "End every cordon of a worker"),
        ("POST", HOLD, 200, changes.cordon, "Older name of .../cordon"),
        ("POST", OPEN, 200, changes.uncordon, "Older name of .../uncordon"),
        ("POST", DRAIN, 202, changes.dismiss, "Drain and remove a worker"),
        ("DELETE", ONE, 202, changes.dismiss, "Drain and remove a worker, named by its id or URL"),
    )
    for method, path, status, handler, summary in routes:
        router.add_api_route(
            path,
            handler,
            methods=[method],
            summary=summary,
            deprecated=path in (HOLD, OPEN) or None,
            status_code=status,
            response_model=Accepted,
            responses=_REFUSALS,
            openapi_extra=_BODY if path in (PATH, ADD) else None,
        )
    return router


class _Listing:
    """Handlers that list workers.

    They are ``async``, because FastAPI runs functions that are not ``async`` in threads.
    """

    def __init__(self, views: Views) -> None:
        self._views = views
        self._fleet = views.fleet

    async def all(self) -> Response:
        return _json(await render_list(self._fleet.workers, await self._views.loads_elsewhere()))

    async def urls(self) -> Response:
        # Clients of this route call every URL in it, and some wait a minute for one that does not answer.
        unusable = (WorkerState.DEAD, WorkerState.DRAINING)
        urls = [worker.url for worker in self._fleet.workers if worker.state not in unusable]
        return _json(compact_json({"urls": urls}))

    async def one(self, request: Request, key: str) -> Response:
        try:
            worker = _worker_of(self._views.registration, request, key)
            loads = await self._views.loads_elsewhere()
            return _json(compact_json(worker_row(worker, elsewhere=loads.get(worker.url, 0))))
        except CallError as error:
            return error.reply()

    async def card(self, request: Request, key: str, model: str | None = None) -> Response:
        try:
            worker = _worker_of(self._views.registration, request, key)
            served = {name for info in worker.infos.values() for name in models_of(worker, info)}
            if model is not None and model not in served:
                raise CallError(404, "model_not_found", f"the worker does not serve {model[:300]!r}")
            return _json(compact_json(card_entry(worker, model)))
        except CallError as error:
            return error.reply()


class _Changes:
    """Handlers that change the fleet."""

    def __init__(self, registration: RegistrationView) -> None:
        self._registration = registration

    async def add(self, request: Request) -> Response:
        async def work() -> Response:
            members = await call_fields(request)
            worker = await self._registration.add(parse_record(members))
            note = "; api_key was not taken, see --worker-api-key" if members.pop("api_key", None) else ""
            if names := ignored(members):
                note += f"; not taken: {', '.join(names)[:500]}"
            status = 200 if request.url.path.endswith(ADD) else 202
            return _accepted(worker, f"worker registered{note}", status)

        return await _with_error_replies(work)

    async def remove(self, request: Request) -> Response:
        async def work() -> Response:
            record = parse_record(await call_fields(request))
            worker = self._registration.find(record.url)
            if worker is None and await self._registration.forget(record.url):
                return _removed(record.url, 200)
            if worker is None:
                # Clients of this route treat an error as a failure of theirs, and the worker is gone already.
                body = {"status": "accepted", "url": record.url, "message": "there is no such worker"}
                return json_response(body)
            await self._registration.remove(worker)
            return _accepted(worker, "worker removed", 200)

        return await _with_error_replies(work)

    async def dismiss(self, request: Request, key: str) -> Response:
        async def work() -> Response:
            urls = [] if _find_worker(self._registration, request, key) else possible_urls(request, key)
            for url in urls:
                if await self._registration.forget(url):
                    return _removed(url, 202)
            worker = _worker_of(self._registration, request, key)
            await self._registration.remove(worker)
            return _accepted(worker, "worker removed", 202)

        return await _with_error_replies(work)

    async def cordon(self, request: Request, key: str) -> Response:
        return await self._with(request, key, self._registration.cordon, "worker cordoned")

    async def uncordon(self, request: Request, key: str) -> Response:
        return await self._with(request, key, self._registration.uncordon, "worker uncordoned")

    async def _with(
        self, request: Request, key: str, change: Callable[[Worker], Awaitable[None]], message: str
    ) -> Response:
        async def work() -> Response:
            worker = _worker_of(self._registration, request, key)
            await change(worker)
            return _accepted(worker, message, 200)

        return await _with_error_replies(work)


def _find_worker(registration: RegistrationView, request: Request, key: str) -> Worker | None:
    found = (registration.find(each) for each in worker_keys(request, key))
    return next((worker for worker in found if worker is not None), None)


def _worker_of(registration: RegistrationView, request: Request, key: str) -> Worker:
    if (worker := _find_worker(registration, request, key)) is not None:
        return worker
    raise CallError(404, "worker_not_found", f"there is no worker {key[:300]!r}")


async def _with_error_replies(work: Callable[[], Awaitable[Response]]) -> Response:
    """Return the reply of ``work``, or the error reply for the exception it raises."""
    try:
        return await work()
    except CallError as error:
        return error.reply()
    except UrlNotAllowed as error:
        return CallError(403, "url_not_allowed", str(error)).reply()
    except RoleNotServed as error:
        return CallError(422, "role_not_served", str(error)).reply()
    except ReadOnlyStore as error:
        return CallError(405, "read_only_store", str(error), {"allow": "GET, HEAD"}).reply()
    except StoreUnavailable as error:
        log.warning("a change of the workers failed: %s", error)
        return CallError(503, "store_unavailable", str(error), {"retry-after": "1"}).reply()


def _accepted(worker: Worker, message: str, status: int) -> Response:
    return _change_reply(worker.id, worker.url, message, status)


def _removed(url: str, status: int) -> Response:
    return _change_reply(id_of(url), url, "worker removed", status)


def _change_reply(worker_id: str, url: str, message: str, status: int) -> Response:
    location = f"{PATH}/{worker_id}"
    body = Accepted(status="accepted", worker_id=worker_id, url=url, location=location, message=message)
    return json_response(body.model_dump(), status)


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")
