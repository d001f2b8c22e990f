"""The event stream at /workers/events: all workers, then each change of one.

Owns: that stream, and the use of sse-starlette. Must never enter: replies of workers (their bytes are relayed
unchanged), what counts as a change.

Importing sse-starlette replaces ``uvicorn.Server.handle_exit`` in the whole process. The gateway does not use
that method (gateway.process.shutdown), and these streams end when the gateway drains, so neither is affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from gateway.control.replies import Failure, add_get_route, failure
from gateway.control.views import FleetView, Views
from gateway.control.workers_rows import compact_json, worker_row
from gateway.fleet.changes import Change, ChangeKind, forget

PATH = "/workers/events"

#: Seconds between two comments, so that no proxy between takes the connection for idle.
PING = 15.0
#: Seconds between two checks whether the gateway drains.
DRAIN_POLL = 0.25
#: The line end that the engines use; the default of sse-starlette is CR LF.
SEPARATOR = "\n"

_EXAMPLE = 'event: state\ndata: {"id": "...", "url": "...", "state": "ready", ...}\n\n'
_RESPONSES: dict[int | str, dict[str, Any]] = {
    HTTPStatus.OK: {
        "description": "Events `state`, `joined`, `left`: a WorkerEntry; `lost`: all are sent again",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    },
    HTTPStatus.SERVICE_UNAVAILABLE: {"description": "The gateway is draining", "model": Failure},
}


class Lost(BaseModel):
    """The client did not keep up, so events were lost. ``workers`` events with the current state follow."""

    workers: int


def events_router(views: Views) -> APIRouter:
    """Return the router of the event stream."""
    router = APIRouter(tags=["workers"])

    # ``async`` without an ``await``, because FastAPI runs functions that are not ``async`` in threads.
    async def worker_events() -> Response:
        if views.lifecycle.draining:
            return failure(HTTPStatus.SERVICE_UNAVAILABLE, "Service is draining")
        return _Stream(views)

    described = {"response_class": EventSourceResponse, "responses": _RESPONSES}
    add_get_route(
        router, PATH, worker_events, summary="All workers, then each change, as events", **described
    )
    return router


class _Stream(EventSourceResponse):
    """One event stream. It ends when the client disconnects or the gateway drains."""

    def __init__(self, views: Views) -> None:
        super().__init__(_events(views), ping=PING, sep=SEPARATOR)
        del self.headers["connection"]  # the listener decides whether the connection is kept open
        self._lifecycle = views.lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Two tasks send events and comments, but only one at a time may wait for a slow client.
        lock = asyncio.Lock()

        async def send_alone(message: Message) -> None:
            async with lock:
                await send(message)

        await super().__call__(scope, receive, send_alone)
        if self.active and self._lifecycle.draining:
            # sse-starlette does not end the body here; a stream that ends by a drain ends with a complete
            # body.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _listen_for_exit_signal_with_grace(self) -> None:
        """Return when the stream must end.

        The method of sse-starlette looks at the signal handler of the process and at a flag that all
        applications share and nothing resets, in a task that outlives every stream.
        """
        while not self._lifecycle.draining:  # noqa: ASYNC110 - a signal handler sets this flag, so there is no event to wait for
            await asyncio.sleep(DRAIN_POLL)


async def _events(views: Views) -> AsyncIterator[ServerSentEvent]:
    fleet = views.fleet
    with fleet.follow() as changes:
        pending = _current(fleet)
        # The head of the reply is sent with the first bytes of the body, and an empty fleet has no event.
        yield ServerSentEvent(comment="all workers, then each change", sep=SEPARATOR)
        while True:
            loads = await views.loads_elsewhere()
            for each in pending:
                load = loads.get(each.worker.url, 0)
                yield _event(each.kind, worker_row(each.worker, each.state, each.reason, load))
                # Let other tasks run: sending does not wait while the client keeps up, and a fleet may be
                # large.
                await asyncio.sleep(0)
            change = await changes.get()
            if change is None:
                forget(changes)
                pending = _current(fleet)
                yield _event("lost", Lost(workers=len(pending)).model_dump())
            else:
                pending = [change]


def _current(fleet: FleetView) -> list[Change]:
    return [Change.now(ChangeKind.STATE, worker) for worker in fleet.workers]


def _event(name: str, data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(compact_json(data), event=name, sep=SEPARATOR)
