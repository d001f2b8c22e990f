"""The fleet as it changes, for people and tools that watch it.

Owns: the event stream at /workers/events, and sse-starlette, which sends it. Must never enter: replies of
workers (their bytes cross as they are), what counts as a change.

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

from gateway.control.replies import Failure, failure, get
from gateway.control.views import FleetView, Views
from gateway.control.workers_rows import compact_json, worker_row
from gateway.fleet.changes import Change, ChangeKind, forget

PATH = "/workers/events"

#: Seconds between two comments, which keep the connection from looking idle to what lies between.
PING = 15.0
#: How often a stream looks whether its gateway drains, in seconds.
GLANCE = 0.25
#: As the engines end their lines, and not CR LF, the package's own.
SEPARATOR = "\n"

_EXAMPLE = 'event: state\ndata: {"id": "...", "url": "...", "state": "ready", ...}\n\n'
_RESPONSES: dict[int | str, dict[str, Any]] = {
    HTTPStatus.OK: {
        "description": "Events `state`, `joined`, `left`, of a WorkerEntry; `lost` before all is told anew",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    },
    HTTPStatus.SERVICE_UNAVAILABLE: {"description": "The gateway is draining", "model": Failure},
}


class Lost(BaseModel):
    """The watcher did not keep up. ``workers`` is how many events with current entries follow."""

    workers: int


def events_router(views: Views) -> APIRouter:
    """The stream of changes, which begins with what is there."""
    router = APIRouter(tags=["workers"])

    # ``async`` without an await because FastAPI runs all others in threads.
    async def worker_events() -> Response:
        if views.lifecycle.draining:
            return failure(HTTPStatus.SERVICE_UNAVAILABLE, "Service is draining")
        return _Stream(views)

    described = {"response_class": EventSourceResponse, "responses": _RESPONSES}
    get(router, PATH, worker_events, summary="All workers, then each change, as events", **described)
    return router


class _Stream(EventSourceResponse):
    """Ends when its client leaves or its gateway drains."""

    def __init__(self, views: Views) -> None:
        super().__init__(_events(views), ping=PING, sep=SEPARATOR)
        del self.headers["connection"]  # whether it is kept is the listener's to say
        self._lifecycle = views.lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Events and comments come from two tasks, but one at a time can wait for a slow client.
        turn = asyncio.Lock()

        async def in_turn(message: Message) -> None:
            async with turn:
                await send(message)

        await super().__call__(scope, receive, in_turn)
        if self.active and self._lifecycle.draining:
            # The package cuts a stream short; that of a gateway which was told to stop is whole.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _listen_for_exit_signal_with_grace(self) -> None:
        """Return when the stream should end.

        The package's own looks at the process's signal handler, and at a flag that all apps share and nothing
        resets, in a task that outlives every stream.
        """
        while not self._lifecycle.draining:  # noqa: ASYNC110 - a mark set by a signal has no event
            await asyncio.sleep(GLANCE)


async def _events(views: Views) -> AsyncIterator[ServerSentEvent]:
    fleet = views.fleet
    with fleet.follow() as changes:
        now = _now(fleet)
        # The head of the reply leaves with its first bytes, and an empty fleet has no others.
        yield ServerSentEvent(comment="all workers, then each change", sep=SEPARATOR)
        while True:
            loads = await views.loads_elsewhere()
            for known in now:
                load = loads.get(known.worker.url, 0)
                yield _event(known.kind, worker_row(known.worker, known.state, known.reason, load))
                # Nothing else waits while the client keeps up, and a large fleet is many events.
                await asyncio.sleep(0)
            change = await changes.get()
            if change is None:
                forget(changes)
                now = _now(fleet)
                yield _event("lost", Lost(workers=len(now)).model_dump())
            else:
                now = [change]


def _now(fleet: FleetView) -> list[Change]:
    return [Change.now(ChangeKind.STATE, worker) for worker in fleet.workers]


def _event(name: str, data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(compact_json(data), event=name, sep=SEPARATOR)
