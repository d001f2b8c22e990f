"""The metrics of all workers in one scrape.

Owns: the route, which workers are scraped, the limits of time and size. Must never enter: the metrics of the
gateway, the text format.

All workers are scraped at the same time. Their metrics are merged in slices, so that a scrape of a large
fleet does not block the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from gateway.control.exposition_merge import Merger
from gateway.control.replies import add_get_route
from gateway.control.targets import select_targets
from gateway.control.views import FleetView
from gateway.fleet.client import WorkerCall, WorkerCallFailed, WorkerCalls
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat, BaseFormat
from gateway.formats.contract import Headers

PATH = "/engine_metrics"
#: Seconds that the workers have to answer, largest reply of one in bytes, largest sum of all in bytes.
TIMEOUT, ANSWER_LIMIT, TOTAL_LIMIT = 2.0, 8 * 1024 * 1024, 128 * 1024 * 1024
#: Lines that are merged in one slice, before other tasks run.
SLICE = 200
#: The family, added by the gateway, that says which workers are in the scrape.
UP = "engine_metrics_up"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def engine_metrics_router(fleet: FleetView, calls: WorkerCalls, formats: Sequence[AnyFormat]) -> APIRouter:
    """Return the router with this one route. ``formats`` know where their engines serve metrics."""
    paths = {format.name: format.metrics for format in formats}
    router = APIRouter(tags=["system"])

    async def engine_metrics(request: Request) -> Response:
        authorization = [line for line in request.scope["headers"] if line[0] == b"authorization"]
        merger = await scrape_workers(fleet.workers, calls, paths, authorization)
        return StreamingResponse(_slices(merger), headers={"content-type": CONTENT_TYPE})

    add_get_route(
        router,
        PATH,
        engine_metrics,
        summary="Prometheus metrics of all workers, with a label `worker`",
        response_class=Response,
    )
    return router


async def scrape_workers(
    workers: Sequence[Worker],
    calls: WorkerCalls,
    paths: Mapping[str, str],
    authorization: Headers,
    *,
    seconds: float = TIMEOUT,
) -> Merger:
    """Return the metrics of all ``workers`` that answer within ``seconds``; ``paths`` are those of formats.

    The family ``UP`` is 0 for a worker that does not. A server that is several workers is there as one.
    """
    targets = select_targets(workers, None)
    headers = [(b"accept", b"text/plain;version=0.0.4"), *authorization]
    scrapes = await asyncio.gather(
        *(
            _scrape(worker, calls, WorkerCall(b"GET", _path_of(worker, paths), headers), seconds)
            for worker in targets.asked
        )
    )
    merger = Merger()
    up = {skipped.worker: 0 for skipped in targets.skipped if not skipped.same_server}
    for worker, scrape in zip(targets.asked, scrapes, strict=True):
        up[worker] = int(scrape is not None and merger.size + len(scrape) <= TOTAL_LIMIT)
        if up[worker] and scrape is not None:
            await _merge(merger, worker.url, scrape)
    head = f"# HELP {UP} 1 if the worker's metrics are in this scrape\n# TYPE {UP} gauge\n"
    for worker, value in up.items():
        for _ in merger.add(worker.url, f"{head}{UP} {value}\n".encode()):
            pass
    return merger


def _path_of(worker: Worker, paths: Mapping[str, str]) -> bytes:
    """Return where ``worker`` serves its metrics: as the first of its formats says."""
    spoken = (*worker.infos, worker.declared_format or "")
    return next((paths[name] for name in spoken if name in paths), BaseFormat.metrics).encode()


async def _merge(merger: Merger, url: str, scrape: bytes) -> None:
    for number, _ in enumerate(merger.add(url, scrape), 1):
        if number % SLICE == 0:
            await asyncio.sleep(0)


async def _scrape(worker: Worker, calls: WorkerCalls, call: WorkerCall, seconds: float) -> bytes | None:
    try:
        answer = await calls.send_within_quota(worker, call, seconds=seconds, limit=ANSWER_LIMIT)
    except WorkerCallFailed:
        return None
    return answer.body if answer.accepted else None


async def _slices(merger: Merger) -> AsyncIterator[bytes]:
    for family in merger.render():
        yield family
        await asyncio.sleep(0)
