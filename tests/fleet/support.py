"""Builders that the tests of the fleet share."""

from __future__ import annotations

import random
from typing import Any

from gateway.fleet.health.health import Health
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerEvent
from gateway.fleet.worker import Worker
from gateway.routing.policy import LeastInFlight
from gateway.stores.last_writer_wins.map import Changes, Updates
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address


def fleet_of(*urls: str, record: WorkerRecord | None = None, **options: Any) -> Fleet:
    """Return a fleet whose workers at ``urls`` are ready. ``record`` is that of the first one."""
    fleet = Fleet(LeastInFlight(random.Random(0)), 5.0, **options)
    for url in urls:
        worker = Worker(Address.parse(url), record=record if url == urls[0] else None)
        fleet.add(worker)
        fleet.apply_event(worker, WorkerEvent.SERVES)
    return fleet


def presence(updates: Updates) -> Changes:
    """Return ``updates`` without their versions."""
    return {key: entry.present for key, entry in updates.items()}


class ProbedWorkers:
    """A double of ``Health`` that notes which workers are probed."""

    def __init__(self) -> None:
        assert all(callable(each) for each in (Health.watch, Health.forget, Health.check_reachable))
        self.watched: list[str] = []
        self.checked: list[str] = []

    def watch(self, worker: Worker) -> None:
        self.watched.append(worker.url)

    def forget(self, worker: Worker) -> None:
        while worker.url in self.watched:
            self.watched.remove(worker.url)

    def check_reachable(self, worker: Worker) -> None:
        self.checked.append(worker.url)
