"""The selection of the workers that a control call is sent to.

Owns: reading which worker a call names, and selecting the workers to call and to skip. Must never enter:
sending a call, its reply.
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

#: The query parameter and the header by which a call names one worker, by its id or URL.
QUERY, HEADER = b"worker", b"x-worker-id"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A worker that is not called, and the reason. ``same_server``: another entry of its server is called."""

    worker: Worker
    reason: str
    same_server: bool = False


@dataclass(frozen=True, slots=True)
class Targets:
    """The workers to call and to skip, in the order in which they joined.

    Workers of other formats are in neither list.
    """

    asked: list[Worker] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def total(self) -> int:
        return len(self.asked) + len(self.skipped)

    @property
    def servers(self) -> int:
        """``total``, with a server counted once that is several workers."""
        return self.total - sum(skipped.same_server for skipped in self.skipped)


def select_targets(workers: Iterable[Worker], formats: Collection[str] | None) -> Targets:
    """Select those of ``workers`` that speak one of ``formats`` (None: any), including cordoned ones.

    Of several workers that are one server the first is asked.
    """
    targets = Targets()
    for worker in workers:
        spoken = _spoken(worker)
        if spoken and formats is not None and spoken.isdisjoint(formats):
            continue
        if (reason := _skip_reason(worker, spoken)) is not None:
            targets.skipped.append(Skipped(worker, reason))
        elif (asked := asked_as(worker, targets.asked)) is not None:
            targets.skipped.append(Skipped(worker, f"it is the same server as {asked.url}", same_server=True))
        else:
            targets.asked.append(worker)
    return targets


def asked_as(worker: Worker, asked: Collection[Worker]) -> Worker | None:
    """Return the one of ``asked`` that is the same server as ``worker``, None if there is none."""
    return next((other for other in worker.other_entries if other in asked), None)


def _spoken(worker: Worker) -> set[str]:
    """Return the formats that a worker speaks, as probed or as registered."""
    return set(worker.infos) or ({worker.declared_format} if worker.declared_format is not None else set())


def _skip_reason(worker: Worker, spoken: Collection[str]) -> str | None:
    if worker.state is WorkerState.DEAD:
        return f"dead: {worker.reason}"
    if worker.state in (WorkerState.DRAINING, WorkerState.GONE):
        return "it is draining"
    return None if spoken else f"its format is not known yet: {worker.reason}"


def parse_call(request: Request, path: str, body: bytes) -> tuple[WorkerCall, str | None]:
    """Return the call to forward, and the name of the worker in it, if any.

    The query parameter or header that names a worker is removed; everything else is as the client sent it.
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
    """Return the worker with this id or URL. Raise CallError if there is none."""
    worker = registration.find(name)
    if worker is None:
        raise CallError(404, "worker_not_found", f"there is no worker {name[:300]!r}")
    return worker


def no_worker_error(targets: Targets) -> CallError:
    """Return the error for a call that no worker can get at the moment."""
    reasons = "; ".join(f"{skipped.worker.url}: {skipped.reason}" for skipped in targets.skipped[:8])
    detail = f" ({reasons})" if reasons else ""
    return CallError(503, "no_worker", f"no worker can be called at the moment{detail}", {"retry-after": "1"})
