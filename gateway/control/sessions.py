"""The route by which agent frameworks announce the end of a session.

Owns: the route. Must never enter: the choice of a worker for a session.

The worker of a session is computed from the name of the session (gateway.routing.rendezvous) and no state is
kept, so there is nothing to delete. Clients that end a session expect a 200, whatever name they send.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

PATH = "/finish_session"


class Finished(BaseModel):
    """The reply. ``session_id`` is that of the query, null if it has none."""

    status: str
    session_id: str | None


def sessions_router() -> APIRouter:
    """Return the router with this one route."""
    router = APIRouter(tags=["control"])

    # ``async`` without an ``await``, because FastAPI runs functions that are not ``async`` in threads.
    async def finish_session(session_id: str | None = None) -> Finished:
        return Finished(status="ok", session_id=session_id)

    router.add_api_route(PATH, finish_session, methods=["POST"], summary="End a session; always succeeds")
    return router
