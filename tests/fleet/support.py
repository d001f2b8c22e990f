"""Builders that the tests of the fleet share."""

from __future__ import annotations

import random
from typing import Any

from gateway.fleet.health.health import Health
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import LeastInFlight, Policy
from gateway.stores.last_writer_wins.map import Changes, Updates
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address
from gateway.upstream.connector import Connector

CAPABILITY = "generate"


def worker_at(url: str, **options: Any) -> Worker:
    return Worker(Address.parse(url), **options)


def member(
    name: str,
    *models: str,
    state: WorkerState = WorkerState.READY,
    capability: str = CAPABILITY,
    usable: bool = True,
) -> Worker:
    """Return a worker that was probed."""
    worker = worker_at(f"http://{name}:1")
    worker.infos = {"echo": WorkerInfo("engine", capability, usable, models=models)}
    worker.state = state
    return worker


def fleet_with(
    *workers: Worker, policy: Policy | None = None, connector: Connector | None = None, **options: Any
) -> Fleet:
    fleet = Fleet(policy or LeastInFlight(random.Random(0)), connector or Connector(5.0), **options)
    for worker in workers:
        fleet.add(worker)
    return fleet


def fleet_of(*urls: str, record: WorkerRecord | None = None, **options: Any) -> Fleet:
    """Return a fleet whose workers at ``urls`` are ready. ``record`` is that of the first one."""
    records = {url: record for url in urls[:1]}
    fleet = fleet_with(*(worker_at(url, record=records.get(url)) for url in urls), **options)
    for worker in fleet.workers:
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
