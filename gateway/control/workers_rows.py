"""A worker as the workers API shows it.

Owns: the JSON of a worker and of the list of workers; it has the members of other routers of this field, and
more. Must never enter: routes, registration, a request to a worker, a key.

Rows are plain dicts, because pydantic models of 512 workers take a tenth of a second. ``WorkerEntry`` is the
schema in the OpenAPI document, and a test checks the rows against it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict

from gateway.fleet.states import USABLE, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.record import WORKER_TYPES

#: Rows that are rendered in one slice, before other tasks run.
SLICE = 64

Row = dict[str, Any]
#: The loads of other processes if there are none.
NO_LOADS: Mapping[str, int] = MappingProxyType({})


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Offer(_Shape):
    """What a probe found out about a worker in one format."""

    format: str
    usable: bool
    reason: str
    engine: str
    version: str | None
    models: list[str]
    adapters: list[str]
    context_length: int | None
    stream_mode: str | None
    weight_version: str | None


class ReportedLoad(_Shape):
    """The load as the engine reports it: requests running and queued in it, from all its clients."""

    running: int
    waiting: int
    cache_usage: float | None


class WorkerEntry(_Shape):
    """One worker.

    ``load`` is the number of requests that all processes of this gateway have in flight at it. ``id`` is
    always the same for one URL. ``is_healthy`` is true if it may get requests now. ``metadata`` is another
    name of ``labels``. ``same_server_as`` is the URL of an earlier worker that is the same server. ``cost``,
    ``connection_mode`` and ``disable_health_check`` exist for clients of other routers.
    """

    id: str
    url: str
    model_id: str | None
    priority: int | None
    cost: float
    worker_type: str
    is_healthy: bool
    load: int
    connection_mode: str
    metadata: dict[str, str]
    disable_health_check: bool
    bootstrap_port: int | None
    labels: dict[str, str]
    state: str
    reason: str
    holds: list[str]
    cordons: list[str]
    engine: str | None
    version: str | None
    context_length: int | None
    vocab_size: int | None
    weight_version: str | None
    reported_load: ReportedLoad | None
    same_server_as: str | None
    offers: list[Offer]
    card: dict[str, Any]
    card_version: int
    card_conflicts: list[str]


class CardEntry(_Shape):
    """The card of a worker, or of its ``model`` if one is named. docs/worker-cards.md describes its members.

    ``version`` grows with each change. ``sources`` has who mentioned each member: registration, store,
    engine, setting or default. ``conflicts`` are the members in which cards of workers of the model differ,
    ``models`` the models of the worker with a card of their own.
    """

    worker_id: str
    url: str
    model: str | None
    version: int
    card: dict[str, Any]
    sources: dict[str, str]
    conflicts: list[str]
    models: list[str]


class WorkerList(_Shape):
    """All workers. ``stats`` has the number of each type and of each state, as ``<type or state>_count``."""

    workers: list[WorkerEntry]
    total: int
    stats: dict[str, int]


def worker_row(
    worker: Worker, state: WorkerState | None = None, reason: str | None = None, elsewhere: int = 0
) -> Row:
    """Return the row of ``worker``, if given with an earlier ``state`` and its ``reason``.

    ``elsewhere`` is its load from other processes of the gateway.
    """
    record, load = worker.record, worker.vitals.reported
    cordons = [source.value for source in worker.cordons]
    offers = [_offer(name, info) for name, info in worker.infos.items()]
    # The usable offer; if there is none, any, so that a reader sees what the worker is.
    best = max(offers, key=_usable, default=_NO_OFFER)
    shown = worker.state if state is None else state
    return {
        "id": worker.id,
        "url": worker.url,
        "model_id": best["models"][0] if best["models"] else record.model,
        "priority": record.priority,
        "cost": 1.0,
        "worker_type": record.worker_type,
        "is_healthy": shown in USABLE,
        "load": worker.in_flight + elsewhere,
        "connection_mode": "http",
        "metadata": record.labels,
        "disable_health_check": False,
        "bootstrap_port": record.bootstrap_port,
        "labels": record.labels,
        "state": shown.value,
        "reason": worker.reason if reason is None else reason,
        "holds": cordons,
        "cordons": cordons,
        "engine": best["engine"],
        "version": best["version"],
        "context_length": best["context_length"],
        "vocab_size": worker.card.values.vocab_size,
        "weight_version": worker.weight_version,
        "reported_load": None
        if load is None
        else {"running": load.running, "waiting": load.waiting, "cache_usage": load.cache_usage},
        "same_server_as": None if (first := worker.same_server_as) is None else first.url,
        "offers": offers,
        "card": worker.card.document,
        "card_version": worker.card.version,
        "card_conflicts": worker.card_conflicts,
    }


def card_entry(worker: Worker, model: str | None = None) -> Row:
    """Return the CardEntry of ``worker``, or of one of its models."""
    card = worker.card.of_model(model)
    return {
        "worker_id": worker.id,
        "url": worker.url,
        "model": model,
        "version": card.version,
        "card": card.document,
        "sources": card.sources,
        "conflicts": worker.card_conflicts,
        "models": list(worker.card.models),
    }


_NO_OFFER: Row = {"models": (), "engine": None, "version": None, "context_length": None, "usable": False}


def _usable(offer: Row) -> bool:
    return bool(offer["usable"])


def _offer(name: str, info: WorkerInfo) -> Row:
    return {
        "format": name,
        "usable": info.usable,
        "reason": info.reason,
        "engine": info.engine,
        "version": info.version,
        "models": info.models,
        "adapters": info.adapters,
        "context_length": info.card.context_length,
        "stream_mode": info.stream_mode,
        "weight_version": info.card.weight_version,
    }


def compact_json(value: Any) -> str:
    """Return ``value`` as JSON on one line.

    It is ASCII, because text of workers may hold what UTF-8 cannot encode.
    """
    return json.dumps(value, separators=(",", ":"))


async def render_list(workers: Sequence[Worker], elsewhere: Mapping[str, int] = NO_LOADS) -> str:
    """Return ``workers`` as the JSON of a WorkerList, made in slices so that the event loop is not blocked.

    ``elsewhere`` is their load from other processes of the gateway, by URL.
    """
    rows = []
    for number, worker in enumerate(workers, 1):
        rows.append(compact_json(worker_row(worker, elsewhere=elsewhere.get(worker.url, 0))))
        if number % SLICE == 0:
            await asyncio.sleep(0)
    return f'{{"workers":[{",".join(rows)}],"total":{len(rows)},"stats":{compact_json(_stats(workers))}}}'


def _stats(workers: Sequence[Worker]) -> dict[str, int]:
    types = Counter(worker.record.worker_type for worker in workers)
    states = Counter(worker.state for worker in workers)
    counts = {f"{name}_count": types[name] for name in WORKER_TYPES}
    shown = (state for state in WorkerState if state is not WorkerState.GONE)
    return counts | {f"{state.value}_count": states[state] for state in shown}
