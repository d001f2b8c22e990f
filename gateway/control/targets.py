"""Which workers a call of the control plane is for.

Owns: reading the name of a worker out of a call, and telling who is asked from who is passed over. Must never
enter: sending, what is answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from fastapi import Request

from gateway.control.views import RegistrationView
from gateway.control.workers_calls import CallError
from gateway.fleet.client import WorkerCall
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker

#: How a call names the one worker that it is for, by its id or its URL.
QUERY, HEADER = b"worker", b"x-worker-id"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A worker that was not asked, and why."""

    worker: Worker
    reason: str


@dataclass(frozen=True, slots=True)
class Targets:
    """Who is asked, in the order in which they joined. Workers of other dialects are in neither list."""

    asked: list[Worker] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.asked) + len(self.skipped)


def select_targets(workers: Iterable[Worker], formats: Collection[str] | None) -> Targets:
    """Those of ``workers`` that speak one of ``formats`` (None: any), held and paused ones included."""
    targets = Targets()
    for worker in workers:
        spoken = _spoken(worker)
        if spoken and formats is not None and spoken.isdisjoint(formats):
            continue
        if (reason := _obstacle(worker, spoken)) is not None:
            targets.skipped.append(Skipped(worker, reason))
        else:
            targets.asked.append(worker)
    return targets


def _spoken(worker: Worker) -> set[str]:
    """Formats that it speaks, by its own word or its owner's."""
    return set(worker.infos) or ({worker.only} if worker.only is not None else set())


def _obstacle(worker: Worker, spoken: Collection[str]) -> str | None:
    if worker.state is WorkerState.DEAD:
        return f"dead: {worker.reason}"
    if worker.state in (WorkerState.DRAINING, WorkerState.GONE):
        return "it is leaving the fleet"
    return None if spoken else f"not known yet what it speaks: {worker.reason}"


def parse_call(request: Request, path: str, body: bytes) -> tuple[WorkerCall, str | None]:
    """The call as workers get it, and the worker that it names, if any.

    What names a worker is the gateway's own, and no part of the call; all else is as the client spelled it.
    """
    headers = [line for line in request.scope["headers"] if line[0] != HEADER]
    query = bytes(request.scope.get("query_string") or b"")
    name = request.headers.get(HEADER.decode())
    if QUERY in query:
        kept = []
        for part in query.split(b"&"):
            key, _, value = part.partition(b"=")
            if key == QUERY:
                name = unquote_plus(value.decode("latin-1"))
            else:
                kept.append(part)
        query = b"&".join(kept)
    target = path.encode() + (b"?" + query if query else b"")
    return WorkerCall(request.method.encode(), target, headers, body), name


def find_worker(registration: RegistrationView, name: str) -> Worker:
    """The member with this id or URL. Raises CallError."""
    worker = registration.find(name)
    if worker is None:
        raise CallError(404, "worker_not_found", f"there is no worker {name[:300]!r}")
    return worker


def no_worker_error(targets: Targets) -> CallError:
    """There is no worker to send_call, at the moment."""
    reasons = "; ".join(f"{one.worker.url}: {one.reason}" for one in targets.skipped[:8])
    detail = f" ({reasons})" if reasons else ""
    return CallError(503, "no_worker", f"no worker can be asked at the moment{detail}", {"retry-after": "1"})
