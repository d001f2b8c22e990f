"""Information routes: calls that ask engines about themselves or their load.

Owns: the routes, which worker is asked, the load of all workers as one document. Must never enter: what the
gateway itself knows (``workers``, ``models``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.catalog import EngineRoutes, SharedCall
from gateway.control.replies import add_get_route, json_response, parse_worker_json, passthrough_response
from gateway.control.targets import find_worker, no_worker_error, parse_call, select_targets
from gateway.control.views import Views
from gateway.control.workers_calls import CallError, ErrorBody
from gateway.fleet.client import WorkerCall, WorkerCallFailed, WorkerReply
from gateway.fleet.states import USABLE, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import ReplyHead
from gateway.formats.optional import LoadAlternative
from gateway.formats.routes import Recipients

#: Seconds that one worker may take, and the largest reply in bytes.
TIMEOUT, ANSWER_LIMIT = 5.0, 16 * 1024 * 1024
#: Largest reply with the load of a worker, in bytes; it is parsed here in one step.
LOAD_LIMIT = 1024 * 1024
#: How many workers are asked, one after another, until one gives a good reply.
TRIES = 4

#: The order in which workers are asked: usable ones first, then cordoned ones.
_ORDER = (*USABLE, WorkerState.CORDONED)

_ANY_JSON: dict[str, Any] = {"content": {"application/json": {"schema": {}}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The reply of the engine", **_ANY_JSON},
    404: {"model": ErrorBody, "description": "There is no such worker"},
    502: {"model": ErrorBody, "description": "No worker replied"},
    503: {"model": ErrorBody, "description": "There is no worker to ask"},
}


def inference_paths(routes: EngineRoutes) -> tuple[str, ...]:
    """Return the paths that a client with an inference key may call."""
    shown = [path for path, shared in routes.calls.items() if _informs(shared) and not shared.call.secret]
    return (*shown, *routes.loads)


def _informs(shared: SharedCall) -> bool:
    return shared.call.to is Recipients.ANY


def information_router(routes: EngineRoutes, views: Views, formats: Iterable[AnyFormat]) -> APIRouter:
    """Return a router with one route per call that any worker may answer, and one per load path.

    Each takes ``?worker=`` or ``X-Worker-Id`` to ask one worker.
    """
    router = APIRouter(tags=["information"])
    asking = _Asking(views, list(formats))
    for path, shared in routes.calls.items():
        if _informs(shared):
            handler = asking.any_of(path, shared.formats)
            add_get_route(router, path, handler, summary="One usable worker's answer", **_described())
    for path, of in routes.loads.items():
        add_get_route(
            router, path, asking.all_of(path, of), summary="The load of all workers", **_described()
        )
    return router


def _described() -> dict[str, Any]:
    return {"response_class": Response, "responses": _RESPONSES}


class _Asking:
    """The handlers of the information routes."""

    def __init__(self, views: Views, tell: Sequence[AnyFormat]) -> None:
        self._fleet = views.fleet
        self._registration = views.registration
        self._calls = views.calls
        self._tell = tell

    def any_of(self, path: str, formats: Sequence[str]) -> Any:
        """Return a handler that relays the reply of one worker unchanged."""

        async def handle(request: Request) -> Response:
            try:
                sent, name = _read(request, path)
                workers = (
                    [find_worker(self._registration, name)] if name is not None else self._usable(formats)
                )
                return await self._first(workers, sent, self._ask)
            except CallError as error:
                return error.reply()

        return handle

    def all_of(self, path: str, formats: Sequence[str]) -> Any:
        """Return a handler that merges the replies of all workers into one document."""

        async def handle(request: Request) -> Response:
            try:
                sent, name = _read(request, path)
                if name is not None:
                    return await self._first([find_worker(self._registration, name)], sent, self._load_of)
                return await self._loads(formats, sent)
            except CallError as error:
                return error.reply()

        return handle

    def _usable(self, formats: Sequence[str]) -> Sequence[Worker]:
        """Return the workers to ask, best first. Raise CallError if there is none."""
        targets = select_targets(self._fleet.workers, formats)
        found = [worker for worker in targets.asked if worker.state in _ORDER]
        if not found:
            raise no_worker_error(targets)
        return sorted(found, key=lambda worker: _ORDER.index(worker.state))

    async def _loads(self, formats: Sequence[str], sent: WorkerCall) -> Response:
        targets = select_targets(self._fleet.workers, formats)
        if not targets.asked:
            raise no_worker_error(targets)
        answers = await asyncio.gather(*(self._answer(worker, sent) for worker in targets.asked))
        found = [(worker, _document(one)) for worker, one in zip(targets.asked, answers, strict=True)]
        documents = [(worker, one) for worker, one in found if isinstance(one, dict | list)]
        if not documents:
            return _refusal(answers)
        silent = targets.servers - len(documents)
        return json_response(merge_loads(documents), headers={"x-workers-silent": str(silent)})

    async def _answer(self, worker: Worker, sent: WorkerCall) -> WorkerReply | None:
        try:
            async with asyncio.timeout(TIMEOUT), worker.quotas.of_fleet.calls:
                return await self._load_of(worker, sent)
        except (WorkerCallFailed, TimeoutError):
            return None

    async def _load_of(self, worker: Worker, sent: WorkerCall) -> WorkerReply:
        """Return the load of ``worker``, from another path if its engine's version does not have this one."""
        answer = await self._ask(worker, sent, LOAD_LIMIT)
        if answer.head.status == 404:
            for format in self._tell:
                if (
                    format.name in worker.infos
                    and (other := format.load_alternative(sent.target)) is not None
                ):
                    return await self._load_elsewhere(worker, sent, other) or answer
        return answer

    async def _ask(self, worker: Worker, sent: WorkerCall, limit: int = ANSWER_LIMIT) -> WorkerReply:
        return await self._calls.send(worker, sent, seconds=TIMEOUT, limit=limit)

    async def _load_elsewhere(
        self, worker: Worker, sent: WorkerCall, other: LoadAlternative
    ) -> WorkerReply | None:
        """Return the load read from the path of ``other``, None if the engine does not report it there."""
        answer = await self._ask(worker, replace(sent, target=other.target.encode()), LOAD_LIMIT)
        if not answer.accepted:
            return None
        if (load := other.read(answer.body)) is None:
            return None
        body = json.dumps(load).encode()
        return WorkerReply(ReplyHead(200, [(b"content-type", b"application/json")]), body)

    async def _first(
        self,
        workers: Iterable[Worker],
        sent: WorkerCall,
        asked: Callable[[Worker, WorkerCall], Awaitable[WorkerReply]],
    ) -> Response:
        """Return the first reply with a 2xx status, else the last other one.

        Raise CallError if there is none.
        """
        bad: WorkerReply | None = None
        error_text = "no worker was asked"
        for worker in list(workers)[:TRIES]:
            try:
                answer = await asked(worker, sent)
            except WorkerCallFailed as error:
                error_text = f"{worker.url}: {error}"
                continue
            if answer.accepted:
                return passthrough_response(answer.head, answer.body)
            bad = answer
        if bad is None:
            raise CallError(502, "no_answer", error_text)
        return passthrough_response(bad.head, bad.body)


def _read(request: Request, path: str) -> tuple[WorkerCall, str | None]:
    sent, name = parse_call(request, path, b"")
    # A HEAD is sent as a GET; the gateway leaves out the body of the reply.
    return WorkerCall(b"GET", sent.target, sent.headers), name


def _document(answer: WorkerReply | None) -> Any:
    """Return the parsed reply, None if it is missing, not 2xx, or no JSON."""
    if answer is None or not answer.accepted:
        return None
    try:
        return parse_worker_json(answer.body)
    except ValueError:
        return None


def _refusal(answers: Sequence[WorkerReply | None]) -> Response:
    """Return the common 4xx reply of all workers. Raise CallError if there is none."""
    first, statuses = answers[0], {None if one is None else one.head.status for one in answers}
    if first is not None and len(statuses) == 1 and 400 <= first.head.status < 500:
        return passthrough_response(first.head, first.body)
    raise CallError(502, "no_answer", "no worker reported its load")


def merge_loads(documents: Sequence[tuple[Worker, Any]]) -> Any:
    """Merge the load documents of several workers into one of the same shape.

    Lists are joined, and each entry gets a member ``worker``. Of objects, the list ``loads`` is joined so,
    integers are added, and any other member is that of the first worker. Objects without ``loads`` get a
    member ``workers`` with the document of each worker.
    """
    first = documents[0][1]
    if isinstance(first, list):
        return [
            entry for worker, one in documents if isinstance(one, list) for entry in _entries(worker, one)
        ]
    alike = [(worker, one) for worker, one in documents if isinstance(one, dict)]
    merged = {name: _sum([one.get(name) for _, one in alike]) for name in first}
    if isinstance(first.get("loads"), list):
        loads = [(worker, one.get("loads")) for worker, one in alike]
        merged["loads"] = [e for worker, one in loads if isinstance(one, list) for e in _entries(worker, one)]
    else:
        merged["workers"] = [{"worker": worker.url, **one} for worker, one in alike]
    return merged


def _entries(worker: Worker, entries: Iterable[Any]) -> Iterable[Any]:
    return ({"worker": worker.url, **entry} if isinstance(entry, dict) else entry for entry in entries)


def _sum(values: Sequence[Any]) -> Any:
    numbers = [value for value in values if type(value) is int]
    return sum(numbers) if numbers and type(values[0]) is int else values[0]
