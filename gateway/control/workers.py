"""The fleet, as a router's clients ask for it.

Owns: the list of workers in the shape the routers of this field agree on, and more. Must never enter:
membership, asking a worker, a key.
"""

from __future__ import annotations

from uuid import NAMESPACE_URL, uuid5

from fastapi import APIRouter
from pydantic import BaseModel

from gateway.control.replies import get
from gateway.control.views import Views
from gateway.fleet.worker import Worker, WorkerState

PATH = "/workers"


class Offer(BaseModel):
    """What a worker told when it was probed in one format."""

    format: str
    usable: bool
    reason: str
    engine: str
    version: str | None
    models: list[str]
    context_length: int | None
    stream_mode: str | None
    weight_version: str | None


class WorkerEntry(BaseModel):
    """``load`` is the number of requests this gateway has at the worker now, in all its processes. ``id``
    stays for a URL."""

    id: str
    url: str
    model_id: str | None
    is_healthy: bool
    load: int
    worker_type: str
    state: str
    reason: str
    engine: str | None
    version: str | None
    offers: list[Offer]


class WorkerList(BaseModel):
    workers: list[WorkerEntry]
    total: int


def workers_router(views: Views) -> APIRouter:
    """The list of workers, read-only."""
    router = APIRouter(tags=["workers"])

    async def workers() -> WorkerList:
        elsewhere = await views.loads_elsewhere()
        entries = [
            entry(worker, worker.state, worker.reason, elsewhere.get(worker.url, 0))
            for worker in views.fleet.workers
        ]
        return WorkerList(workers=entries, total=len(entries))

    get(router, PATH, workers, summary="All workers, their state and load")
    return router


def entry(worker: Worker, state: WorkerState, reason: str, elsewhere: int) -> WorkerEntry:
    """``worker`` when it was in ``state`` because of ``reason``; all else as it is now.

    ``elsewhere`` is its load from other processes of the gateway.
    """
    offers = [_offer(name, worker) for name in worker.infos]
    # The one it serves with; else any, so that a reader sees what stands there.
    best = max(offers, key=lambda offer: offer.usable, default=None)
    return WorkerEntry(
        id=str(uuid5(NAMESPACE_URL, worker.url)),
        url=worker.url,
        model_id=best.models[0] if best and best.models else None,
        is_healthy=state is WorkerState.READY,
        load=worker.in_flight + elsewhere,
        worker_type="regular",
        state=state.value,
        reason=reason,
        engine=best.engine if best else None,
        version=best.version if best else None,
        offers=offers,
    )


def _offer(name: str, worker: Worker) -> Offer:
    info = worker.infos[name]
    return Offer(
        format=name,
        usable=info.usable,
        reason=info.reason,
        engine=info.engine,
        version=info.version,
        models=list(info.models),
        context_length=info.context_length,
        stream_mode=info.stream_mode,
        weight_version=info.weight_version,
    )
