"""Which workers are entries of one server.

Owns: the facts that show it. Must never enter: I/O, what follows from it for a call.

One server is several workers if it was registered under several names, or once for each of its data-parallel
ranks. Three facts show it: the URL without a rank, the address that a name led to, and what the engine
reports of its launch. An address shows nothing where a reverse proxy may serve several engines by their
names, that is, for names at port 80 or over TLS; nor if the engines report different launches or models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo

#: What connecting to an unspecified address reaches.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing listens there


class SameServers:
    """Keeps ``Worker.server_entries`` of the workers of one fleet up to date."""

    def __init__(self) -> None:
        self._count = count()
        #: The order in which workers joined, and what is known of each.
        self._joined: dict[Worker, int] = {}
        self._facts: dict[Worker, frozenset[str]] = {}
        self._workers: defaultdict[str, set[Worker]] = defaultdict(set)

    def note(self, worker: Worker) -> None:
        """Note what is known of ``worker`` now."""
        self._joined.setdefault(worker, next(self._count))
        before = worker.other_entries
        self._drop_facts(worker)
        self._facts[worker] = facts = frozenset(_facts(worker))
        for fact in facts:
            self._workers[fact].add(worker)
        self._update(worker)
        for other in {*before, *worker.other_entries}:
            self._update(other)

    def forget(self, worker: Worker) -> None:
        """Forget a worker that is no member any more."""
        before = worker.other_entries
        self._drop_facts(worker)
        self._joined.pop(worker, None)
        worker.server_entries = ()
        for other in before:
            self._update(other)

    def _drop_facts(self, worker: Worker) -> None:
        for fact in self._facts.pop(worker, ()):
            self._workers[fact].discard(worker)
            if not self._workers[fact]:
                del self._workers[fact]

    def _update(self, worker: Worker) -> None:
        alike = {other for fact in self._facts[worker] for other in self._workers[fact]} - {worker}
        agreeing = (other for other in alike if not _contradict(worker, other))
        worker.server_entries = tuple(sorted((worker, *agreeing), key=self._joined.__getitem__))


def _facts(worker: Worker) -> Iterator[str]:
    server = _server(worker)
    yield server
    if (ip := worker.pool.address) is not None:
        at = replace(worker.address, host=_LOOPBACK.get(ip, ip), rank=None)
        is_named = worker.address.host != ip
        if not (is_named and (at.tls or at.port == 80)):
            yield at.identity
    for info in worker.infos.values():
        if info.launch is not None:
            yield f"{info.engine} {info.launch}"


def _server(worker: Worker) -> str:
    return replace(worker.address, rank=None).identity


def _contradict(worker: Worker, other: Worker) -> bool:
    """Return True if the engines say that they are not the same, although an address or launch is."""
    if _server(worker) == _server(other):
        return False
    pairs = ((info, other.infos[name]) for name, info in worker.infos.items() if name in other.infos)
    return any(_differ(one, two) for one, two in pairs)


def _differ(one: WorkerInfo, two: WorkerInfo) -> bool:
    launches = None not in (one.launch, two.launch) and one.launch != two.launch
    return launches or bool(one.models and two.models and one.models[0] != two.models[0])
