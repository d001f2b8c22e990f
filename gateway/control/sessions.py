"""The end of a session, as agents' frameworks announce it.

Owns: the route. Must never enter: where the requests of a session go.

The worker of a session follows from the session's name (gateway.routing.rendezvous) and no state is kept, so
there is nothing to delete. Clients that end a session still expect a 200, whatever name they send.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

PATH = "/finish_session"


class Finished(BaseModel):
    """``session_id`` is the one of the query, null where it names none."""

    status: str
    session_id: str | None


def sessions_router() -> APIRouter:
    """The one route."""
    router = APIRouter(tags=["control"])

    # ``async`` without an await because FastAPI runs all others in threads.
    async def finish_session(session_id: str | None = None) -> Finished:
        return Finished(status="ok", session_id=session_id)

    router.add_api_route(PATH, finish_session, methods=["POST"], summary="A session is over; never an error")
    return router
