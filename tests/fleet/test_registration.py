"""The workers API behind its routes: the store first, then the fleet, at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.fleet.cordons import BY_OWNER, DISMISSED, Cordons, weights_allowed
from gateway.fleet.members import FleetMembership
from gateway.fleet.registration import Registration, UrlNotAllowed
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource
from gateway.fleet.worker import id_of
from gateway.stores.base import ReadOnlyStore, Reset, StoreUnavailable
from gateway.stores.last_writer_wins.map import Changes, Updates
from gateway.stores.last_writer_wins.replication import no_peers
from gateway.stores.memory import MemoryStore
from gateway.stores.record import WorkerRecord
from gateway.upstream.url_patterns import UrlPattern
from tests.fleet.support import ProbedWorkers, fleet_of, presence

A = WorkerRecord("http://a:1")


class Failing(MemoryStore):
    """``fault``, once set, is raised by each change, and this gateway cannot write a read-only store."""

    fault: Exception | None = None

    def fail(self, fault: Exception) -> None:
        self.fault, self.writable = fault, not isinstance(fault, ReadOnlyStore)

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        if self.fault is not None:
            raise self.fault
        await super().put(record, ttl=ttl)

    async def delete(self, url: str) -> bool:
        if self.fault is not None:
            raise self.fault
        return await super().delete(url)


def desk(
    *allowed: str, send_to_peers: Callable[[Updates], Awaitable[None]] | None = None
) -> tuple[Registration, Fleet, Failing, FleetMembership]:
    health: Any = ProbedWorkers()
    fleet, store = fleet_of(), Failing()
    cordons = Cordons(fleet, store, send_to_peers or no_peers)
    members = FleetMembership(fleet, health, None, cordons)
    patterns = [UrlPattern.parse(pattern) for pattern in allowed]
    return Registration(store, members, fleet, patterns, cordons), fleet, store, members


async def records(store: MemoryStore) -> Reset:
    change = await anext(store.watch())
    assert isinstance(change, Reset)
    return change


@pytest.mark.parametrize(("url", "other"), [("http://a:80", "http://A/"), ("http://A/b/../", "http://a:080")])
async def test_registered_worker_is_in_the_store_and_in_the_fleet_at_once(url: str, other: str) -> None:
    """Its URL stays as spelled first; any spelling finds it, and registering that replaces its record."""
    registration, fleet, store, _ = desk()
    record = WorkerRecord(url)
    worker = await registration.add(record)
    assert fleet.workers == (worker,)
    assert await records(store) == Reset({url: record})
    assert {registration.find(key) for key in (worker.id, url, other)} == {worker}
    assert await registration.add(WorkerRecord(other, model="m")) is worker
    assert (fleet.workers, worker.url, worker.id) == ((worker,), url, id_of(url))
    assert await records(store) == Reset({url: WorkerRecord(url, model="m")})


@pytest.mark.parametrize("known", [True, False])
async def test_worker_is_removed_by_any_spelling_of_its_records(known: bool) -> None:
    """Gateways of an older version wrote one for each, and another process may have done so just now."""
    registration, fleet, store, members = desk()
    for url in ("http://a:80/", "http://A"):
        await store.put(WorkerRecord(url))
        if known:
            members.admit(WorkerRecord(url))
    if (worker := registration.find("http://a")) is not None:
        await registration.remove(worker)
    else:
        assert await registration.forget("http://a")
    assert (fleet.workers, await records(store)) == ((), Reset({}))


async def test_spelling_that_is_given_is_the_one_that_has_to_be_allowed() -> None:
    registration, fleet, _, _ = desk("127.0.0.0/8")
    await registration.add(WorkerRecord("http://127.0.0.1:1"))
    with pytest.raises(UrlNotAllowed):
        await registration.add(WorkerRecord("http://127.1:1"))
    assert len(fleet.workers) == 1


async def test_url_that_is_not_allowed_is_registered_nowhere() -> None:
    registration, fleet, store, _ = desk("10.0.0.0/8")
    with pytest.raises(UrlNotAllowed, match="http://a:1"):
        await registration.add(A)
    assert (fleet.workers, await records(store)) == ((), Reset({}))


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), ReadOnlyStore("not here")])
async def test_change_that_the_store_does_not_accept_changes_nothing(fault: Exception) -> None:
    """A worker whose record this gateway cannot write is cordoned for this gateway alone."""
    registration, fleet, store, _ = desk()
    worker = await registration.add(A)
    store.fail(fault)
    for change in (
        registration.add(WorkerRecord("http://b:1")),
        registration.remove(worker),
        *([registration.cordon(worker)] if store.writable else []),
    ):
        with pytest.raises(type(fault)):
            await change
    assert (fleet.workers, list(worker.cordons), worker.record.cordoned) == ((worker,), [], False)
    if not store.writable:
        assert not await registration.forget("http://b:1")
        await registration.cordon(worker)
        assert CordonSource.OWNER in worker.cordons
        await registration.uncordon(worker)
        assert not worker.cordons


async def test_uncordon_ends_every_cordon() -> None:
    registration, fleet, store, _ = desk()
    worker = await registration.add(WorkerRecord(A.url, cordoned=True))
    fleet.cordon(worker, CordonSource.PAUSED, "paused")
    await registration.uncordon(worker)
    assert not worker.cordons
    assert await records(store) == Reset({A.url: A})


async def test_changes_without_a_record_are_sent_to_the_other_processes() -> None:
    sent: list[Changes] = []

    async def send_to_peers(updates: Updates) -> None:
        sent.append(presence(updates))

    registration, fleet, store, members = desk(send_to_peers=send_to_peers)
    members.pin(A)
    (worker,) = fleet.workers
    await registration.cordon(worker)
    await registration.uncordon(worker)
    assert await records(store) == Reset({})
    await registration.remove(worker)
    await registration.add(A)
    changes = [(BY_OWNER, True), (BY_OWNER, False), (DISMISSED, True), (DISMISSED, False)]
    assert sent == [{(A.url, reason): present} for reason, present in changes]


async def test_uncordoning_old_weights_is_sent_with_their_version() -> None:
    registration, fleet, _, members = desk()
    members.pin(A)
    (worker,) = fleet.workers
    fleet.cordon(worker, CordonSource.WEIGHTS, "old")
    await registration.uncordon(worker)
    assert registration._cordons.of(A.url) == {weights_allowed(None)}
    assert not worker.cordons
