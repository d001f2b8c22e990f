"""All workers: who may serve what, and leases that are exact."""

from __future__ import annotations

import asyncio
import logging
import ssl
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, NoWorker, Overloaded, UnknownModel
from gateway.fleet.changes import Changes
from gateway.fleet.registry import Fleet
from gateway.fleet.states import USABLE, CordonSource, WorkerEvent, WorkerState
from gateway.fleet.worker import NO_WEIGHTS, Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import POLICIES, LeastInFlight, Policy
from gateway.routing.rendezvous import ALLOWANCE, Placement, RendezvousAffinity
from gateway.upstream.address import Address
from gateway.upstream.connection import Connection

CAPABILITY = "generate"


class NotingFleet(Fleet):
    """A fleet that notes its transitions, and the placements of leases for a key."""

    def __init__(self, policy: Policy, **options: Any) -> None:
        super().__init__(policy, 5.0, metrics=self, **options)
        self.moves: list[tuple[str, str]] = []
        self.placements: list[Placement] = []

    def moved(self, before: WorkerState, after: WorkerState) -> None:
        self.moves.append((before, after))

    def placed(self, placement: Placement) -> None:
        self.placements.append(placement)


def fleet_of(*workers: Worker, policy: Policy | None = None, **options: Any) -> NotingFleet:
    fleet = NotingFleet(policy or LeastInFlight(Random(0)), **options)
    for worker in workers:
        fleet.add(worker)
    return fleet


def member(
    name: str,
    *models: str,
    state: WorkerState = WorkerState.READY,
    capability: str = CAPABILITY,
    usable: bool = True,
) -> Worker:
    worker = Worker(Address.parse(f"http://{name}:1"))
    worker.infos = {"echo": WorkerInfo("engine", capability, usable, models=models)}
    worker.state = state
    return worker


def test_members_in_the_order_they_joined() -> None:
    """The fleet lists its members in order and counts those that are ready."""
    a, b, c = member("a"), member("b", state=WorkerState.DEAD), member("c")
    fleet = fleet_of(a, b, c)
    assert list(fleet.workers) == [a, b, c]
    assert repr(fleet) == "<Fleet 2 of 3 ready>"


def test_member_with_a_known_url_replaces_it() -> None:
    """A worker that joins again is the new one, and only that."""
    old, new = member("a"), member("a")
    fleet = fleet_of(old, new)
    assert list(fleet.workers) == [new]
    assert fleet.lease(CAPABILITY, None) is new


@pytest.mark.parametrize("state", WorkerState)
def test_only_usable_workers_are_leased(state: WorkerState) -> None:
    """One that is ready, or busy or suspect and the only one; in any other state it gets no request."""
    fleet = fleet_of(member("a", "m", state=state))
    for model in (None, "m", "other"):
        if state in USABLE:
            fleet.lease(CAPABILITY, model)
        else:
            with pytest.raises(NoWorker):
                fleet.lease(CAPABILITY, model)


def test_state_counts_from_the_next_request_on(caplog: pytest.LogCaptureFixture) -> None:
    """Each change of state takes effect at once and is logged once."""
    a, b = member("a"), member("b")
    fleet = fleet_of(a, b)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert set(fleet.usable(CAPABILITY)) == {a, b}
            fleet.on(a, WorkerEvent.DIE, "gone")
            assert list(fleet.usable(CAPABILITY)) == [b]
            assert a.reason == "gone"
            fleet.on(a, WorkerEvent.DIE, "still gone")
            fleet.on(a, WorkerEvent.SERVES)
    assert len(caplog.records) == 4
    assert not any(each.getMessage().endswith(" ") for each in caplog.records)


def test_members_come_and_go() -> None:
    """Joining and leaving take effect at once."""
    a, b = member("a"), member("b")
    fleet = fleet_of(a)
    assert list(fleet.usable(CAPABILITY)) == [a]
    fleet.add(b)
    assert list(fleet.usable(CAPABILITY)) == [a, b]
    fleet.drain(a)
    assert list(fleet.usable(CAPABILITY)) == [b]


def test_other_capability_is_not_leased() -> None:
    """A worker serves what it offers and no more."""
    fleet = fleet_of(member("a", capability="other"), member("b", usable=False))
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, None)
    assert fleet.lease("other", None).url == "http://a:1"


# -- leases


@given(st.lists(st.integers(0, 9), max_size=60))
def test_leases_are_exact(steps: list[int]) -> None:
    """After any order of leases and releases each worker counts what is held on it."""
    fleet = fleet_of(member("a"), member("b"), member("c"))
    held: list[Worker] = []
    for step in steps:
        if step < 5 or not held:
            held.append(fleet.lease(CAPABILITY, None))
        else:
            fleet.release(held.pop(step % len(held)))
        assert [worker.in_flight for worker in fleet.workers] == [held.count(each) for each in fleet.workers]
    assert max(worker.in_flight for worker in fleet.workers) <= len(held)


def test_failed_lease_holds_nothing() -> None:
    """Who gets no worker holds none."""
    a = member("a")
    fleet = fleet_of(a)
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, None, [a])
    assert a.in_flight == 0


def test_burst_is_shared_evenly() -> None:
    """Forty leases held at once over two equal workers: twenty each."""
    fleet = fleet_of(member("a"), member("b"))
    for _ in range(40):
        fleet.lease(CAPABILITY, None)
    assert [worker.in_flight for worker in fleet.workers] == [20, 20]


def test_worker_that_was_tried_is_not_leased_again() -> None:
    """Each try takes another worker, until there is none."""
    fleet = fleet_of(*(member(name, "m") for name in "abc"))
    tried: list[Worker] = []
    for _ in range(3):
        worker = fleet.lease(CAPABILITY, "m", tried)
        assert worker not in tried
        tried.append(worker)
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, "m", tried)


@pytest.mark.parametrize("mode", POLICIES)
def test_key_goes_home_whatever_the_policy(mode: str) -> None:
    """And a request without one goes by it, and is told of to nobody."""
    fleet = fleet_of(*map(member, "abcd"), policy=POLICIES[mode](Random(0)))
    told = fleet.placements
    for key in map(str, range(20)):
        assert len({fleet.lease(CAPABILITY, None, (), key).url for _ in range(3)}) == 1
    assert told == [Placement.HOME] * 60
    assert len({fleet.lease(CAPABILITY, None).url for _ in range(60)}) > 1 and len(told) == 60


@pytest.mark.parametrize("event", [WorkerEvent.DIE, WorkerEvent.FULL, WorkerEvent.DOUBT, WorkerEvent.CORDON])
def test_key_whose_home_is_away_settles_on_another_until_it_is_back(event: WorkerEvent) -> None:
    fleet = fleet_of(*map(member, "abcd"))
    told, home = fleet.placements, fleet.lease(CAPABILITY, None, (), "k")
    fleet.on(home, event)
    settled = {fleet.lease(CAPABILITY, None, (), "k") for _ in range(9)}
    assert len(settled) == 1 and settled != {home}
    assert told == [Placement.HOME] + [Placement.UNAVAILABLE] * 9
    home.state = WorkerState.READY
    fleet.on(home, WorkerEvent.FULL)
    fleet.on(home, WorkerEvent.SERVES)
    assert fleet.lease(CAPABILITY, None, (), "k") is home


def test_key_whose_home_was_tried_goes_to_the_next() -> None:
    fleet = fleet_of(*map(member, "abc"))
    tried: list[Worker] = []
    for _ in range(3):
        tried.append(fleet.lease(CAPABILITY, None, tried, "k"))
    assert len(set(tried)) == 3
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, None, tried, "k")


def test_home_of_a_key_is_among_those_that_serve_its_model() -> None:
    """One that serves it and is away was its home; one of another model never was."""
    ours, others = [member(name, "m") for name in "abc"], [member(name, "n") for name in "defghi"]
    fleet = fleet_of(*ours, *others)
    told = fleet.placements
    homes = {key: fleet.lease(CAPABILITY, "m", (), key) for key in map(str, range(30))}
    assert set(homes.values()) == set(ours) and set(told) == {Placement.HOME}
    fleet.on(ours[0], WorkerEvent.DIE)
    told.clear()
    for key, home in homes.items():
        assert (fleet.lease(CAPABILITY, "m", (), key) is home) is (home is not ours[0])
    assert told == [Placement.UNAVAILABLE if home is ours[0] else Placement.HOME for home in homes.values()]


def test_home_with_too_much_to_do_is_passed_over() -> None:
    fleet = fleet_of(*map(member, "ab"))
    told = fleet.placements
    for _ in range(ALLOWANCE + 1):
        fleet.lease(CAPABILITY, None, (), "k")
    assert told == [Placement.HOME] * ALLOWANCE + [Placement.OVERLOADED]
    assert sorted(worker.in_flight for worker in fleet.workers) == [1, ALLOWANCE]


def test_no_home_is_passed_over_where_that_is_off() -> None:
    fleet = fleet_of(*map(member, "ab"), affinity=RendezvousAffinity(0))
    for _ in range(200):
        fleet.lease(CAPABILITY, None, (), "k")
    assert sorted(worker.in_flight for worker in fleet.workers) == [0, 200]


@pytest.mark.parametrize("factor", [0, 1.5])
def test_home_that_has_all_it_may_have_is_left_for_the_next(factor: float) -> None:
    """Whatever factor there is, and nobody gets one more than it may have."""
    fleet = fleet_of(*map(member, "ab"), most_in_flight=2, affinity=RendezvousAffinity(factor))
    told = fleet.placements
    homes = [fleet.lease(CAPABILITY, None, (), "k") for _ in range(4)]
    assert homes[0] is homes[1] is not homes[2] is homes[3]
    assert told == [Placement.HOME] * 2 + [Placement.OVERLOADED] * 2
    with pytest.raises(Overloaded):
        fleet.lease(CAPABILITY, None, (), "k")
    fleet.release(homes[0])
    assert fleet.lease(CAPABILITY, None, (), "k") is homes[0]


def test_home_that_is_away_is_unavailable_also_where_others_are_full() -> None:
    fleet = fleet_of(*map(member, "abc"), most_in_flight=1)
    told, home = fleet.placements, fleet.lease(CAPABILITY, None, (), "k")
    fleet.on(home, WorkerEvent.DIE)
    first, second = (fleet.lease(CAPABILITY, None, (), "k") for _ in range(2))
    assert len({home, first, second}) == 3
    assert told == [Placement.HOME] + [Placement.UNAVAILABLE] * 2


def test_lease_outlives_its_worker() -> None:
    """A lease on a worker that was removed is released like any other."""
    a = member("a")
    fleet = fleet_of(a)
    fleet.lease(CAPABILITY, None)
    fleet.drain(a)
    fleet.release(a)
    assert a.in_flight == 0


# -- models


def test_model_is_served_by_those_that_have_it() -> None:
    """A named model goes to the workers that serve it."""
    a, b, both = member("a", "m"), member("b", "n"), member("c", "m", "n")
    fleet = fleet_of(a, b, both)
    assert {fleet.lease(CAPABILITY, "m").url for _ in range(20)} == {a.url, both.url}
    assert {fleet.lease(CAPABILITY, "n").url for _ in range(20)} == {b.url, both.url}


def test_any_name_where_one_model_is_served() -> None:
    """With one base model the engine judges the name: it may be an adapter loaded a moment ago."""
    fleet = fleet_of(member("a", "m", "m-lora"), member("b", "m"))
    assert {fleet.lease(CAPABILITY, "new-lora").url for _ in range(20)} == {"http://a:1", "http://b:1"}
    assert {fleet.lease(CAPABILITY, "m-lora").url for _ in range(20)} == {"http://a:1"}


def test_worker_that_names_no_model() -> None:
    """A worker that did not tell its model makes the fleet no mixed one."""
    fleet = fleet_of(member("a", "m"), member("b"))
    fleet.lease(CAPABILITY, None)
    fleet.lease(CAPABILITY, "else")


def test_several_models_and_none_named() -> None:
    """Where base models differ, a request has to name one."""
    fleet = fleet_of(member("a", "m"), member("b", "n"))
    with pytest.raises(InvalidRequest) as caught:
        fleet.lease(CAPABILITY, None)
    assert caught.value.param == "model"


def test_several_models_and_another_named() -> None:
    """A model that nobody serves is unknown; its name is not repeated without end."""
    fleet = fleet_of(member("a", "m"), member("b", "n"))
    with pytest.raises(UnknownModel) as caught:
        fleet.lease(CAPABILITY, "x" * 10_000)
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("others", [("n",), ("n", "o")])
@pytest.mark.parametrize("state", [WorkerState.DEAD, WorkerState.CORDONED, WorkerState.JOINING])
def test_model_whose_worker_is_away(others: tuple[str, ...], state: WorkerState) -> None:
    """It is neither unknown, which clients take for final, nor another worker's to answer."""
    fleet = fleet_of(member("a", "m", state=state), *(member(name, name) for name in others))
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, "m")
    with pytest.raises(InvalidRequest):
        fleet.lease(CAPABILITY, None)


def test_models_of_the_fleet() -> None:
    """Every model that can be had now is listed once, with what is known of it."""
    a = member("a", "m", "lora")
    fleet = fleet_of(
        a, member("b", "m"), member("c", "n", state=WorkerState.DEAD), member("d", "o", usable=False)
    )
    assert set(fleet.models()) == {"m", "lora"}
    assert fleet.models()["m"] is a.infos["echo"]


# -- connections


class Wire(asyncio.Transport):
    """Takes what is sent and says nothing."""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        pass


def returned() -> Connection:
    """A connection that could carry another request."""
    connection = Connection(bytearray(1024))
    connection.connection_made(Wire())
    connection.send(b"GET / HTTP/1.1\r\n\r\n", b"")
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    connection.get_buffer(0)[: len(reply)] = reply
    connection.buffer_updated(len(reply))
    return connection


async def test_leaving_closes_the_pool() -> None:
    """The connections of a worker that leaves, or of a fleet that closes, are closed with it."""
    a, b = member("a"), member("b")
    fleet = fleet_of(a, b)
    fleet.drain(a)
    fleet.close()
    await asyncio.sleep(0)
    assert returned().recycle()
    for worker in (a, b):
        late = returned()
        worker.pool.give_back(late)
        assert late.closed, "a pool that is open would keep it"


def test_one_trust_store_for_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the system's certificates takes tens of ms, so it is done once, and only for https."""
    a, b, c = (Worker(Address.parse(url)) for url in ("https://a", "https://b", "http://c"))
    made: list[ssl.SSLContext] = []

    def store() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[0]

    monkeypatch.setattr(ssl, "create_default_context", store)
    fleet_of(c)
    assert not made
    fleet_of(a, b)
    assert len(made) == 1


# -- followers


def followed(changes: Changes) -> list[tuple[str, str, str]]:
    """Kind, worker and state of each change that waits."""
    waiting = [changes.get_nowait() for _ in range(changes.qsize())]
    return [(change.kind, change.worker.address.host, change.state) for change in waiting if change]


def test_follower_is_told_of_joins_leaves_and_transitions() -> None:
    """In order, each with the state of its moment, and nothing of what was before."""
    a, b = member("a"), member("b", state=WorkerState.JOINING)
    fleet = fleet_of(a)
    with fleet.follow() as changes:
        assert followed(changes) == []
        fleet.add(b)
        fleet.on(b, WorkerEvent.SERVES)
        fleet.on(b, WorkerEvent.DIE, "gone")
        fleet.drain(a)
        assert followed(changes) == [
            ("joined", "b", "joining"),
            ("state", "b", "ready"),
            ("state", "b", "dead"),
            ("state", "a", "draining"),
            ("left", "a", "gone"),
        ]


def test_replaced_member_leaves_before_the_new_one_joins() -> None:
    """Who follows by URL ends up with the new one."""
    fleet = fleet_of(member("a", state=WorkerState.DEAD))
    with fleet.follow() as changes:
        fleet.add(member("a", state=WorkerState.JOINING))
        assert followed(changes) == [
            ("state", "a", "draining"),
            ("left", "a", "gone"),
            ("joined", "a", "joining"),
        ]


def test_follower_is_not_told_what_is_no_change() -> None:
    """The same state again."""
    a = member("a")
    fleet = fleet_of(a)
    with fleet.follow() as changes:
        fleet.on(a, WorkerEvent.SERVES)
        assert followed(changes) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_worker_that_left_is_spoken_of_no_more(replaced: bool) -> None:
    """Its exchanges go on and may find it dead, which says nothing of the fleet nor of its successor."""
    a = member("a")
    fleet = fleet_of(a)
    if replaced:
        fleet.add(member("a"))
    else:
        fleet.drain(a)
    with fleet.follow() as changes:
        fleet.on(a, WorkerEvent.DIE, "refused a connection")
        assert followed(changes) == []


# -- holds


def weighed(least: str | None, version: str | None) -> tuple[Fleet, Worker]:
    """A ready worker that told its weight version to a fleet that asks for ``least``."""
    fleet = Fleet(LeastInFlight(Random(0)), 5.0, min_weight_version=least)
    worker = Worker(Address.parse("http://a:1"))
    fleet.add(worker)
    tell(fleet, worker, version)
    return fleet, worker


def shown(worker: Worker) -> tuple[str, str]:
    """State and reason, as the API has them."""
    return worker.state.value, worker.reason


def tell(fleet: Fleet, worker: Worker, version: str | None) -> None:
    """What a good probe does."""
    info = WorkerInfo("engine", CAPABILITY, True, models=("m",), weight_version=version)
    fleet.describe(worker, {"echo": info})
    fleet.on(worker, WorkerEvent.SERVES)


def test_held_worker_is_opened_once_nobody_holds_it_any_more() -> None:
    """Each hold is lifted by itself; probes lift none."""
    fleet = fleet_of(member("a", "m"))
    (a,) = fleet.workers
    fleet.cordon(a, CordonSource.OWNER, "mine")
    fleet.cordon(a, CordonSource.PAUSED, "paused")
    assert shown(a) == ("held", "mine; paused")
    for event in (WorkerEvent.SERVES, WorkerEvent.FULL, WorkerEvent.DOUBT):
        fleet.on(a, event)
        assert shown(a) == ("held", "mine; paused")
    for _ in range(2):
        fleet.uncordon(a, CordonSource.OWNER)
        assert shown(a) == ("held", "paused")
    fleet.uncordon(a, CordonSource.PAUSED)
    assert shown(a) == ("ready", "")


@pytest.mark.parametrize("state", [WorkerState.JOINING, WorkerState.DEAD])
def test_worker_that_is_held_while_it_is_away_comes_back_held(state: WorkerState) -> None:
    """A death opens nothing: what comes back may have old weights."""
    fleet = fleet_of(member("a", "m", state=state))
    (a,) = fleet.workers
    fleet.cordon(a, CordonSource.OWNER, "held")
    assert a.state is state
    fleet.on(a, WorkerEvent.SERVES)
    assert a.state is WorkerState.CORDONED
    fleet.on(a, WorkerEvent.DIE)
    fleet.on(a, WorkerEvent.SERVES)
    assert a.state is WorkerState.CORDONED


def test_worker_is_held_while_its_weights_are_too_old() -> None:
    """From the start on, again after it fell back, and not without the setting."""
    fleet, worker = weighed("5", "4")
    assert (worker.state, worker.reason) == (
        WorkerState.CORDONED,
        "its weight version is 4, and 5 is wanted",
    )
    for version, state in (("5", WorkerState.READY), ("4", WorkerState.CORDONED), ("6", WorkerState.READY)):
        tell(fleet, worker, version)
        assert worker.state is state
    assert weighed("5", None)[1].reason == "its weight version is not reported, and 5 is wanted"
    assert weighed(None, None)[1].state is WorkerState.READY


def test_weights_that_arrive_open_what_was_registered_held() -> None:
    """But no worker that somebody holds although its weights are new."""
    fleet, worker = weighed("5", "4")
    fleet.cordon(worker, CordonSource.OWNER, "mine")
    tell(fleet, worker, "5")
    assert shown(worker)[0] == "ready"
    fleet.cordon(worker, CordonSource.OWNER, "mine")
    tell(fleet, worker, "6")
    assert shown(worker)[0] == "held"


def test_worker_opened_by_hand_stays_open_with_the_weights_it_has() -> None:
    """Until they change, or another process has them."""
    fleet, worker = weighed("5", "4")
    fleet.uncordon(worker)
    tell(fleet, worker, "4")
    assert shown(worker)[0] == "ready"
    tell(fleet, worker, "3")
    assert shown(worker)[0] == "held"
    fleet.uncordon(worker)
    fleet.on(worker, WorkerEvent.DIE)
    worker.allowed_weights = NO_WEIGHTS
    tell(fleet, worker, "3")
    assert shown(worker)[0] == "held"


# -- leaving


def test_worker_that_drains_leaves_with_its_last_lease() -> None:
    """Nothing new, and gone once nothing runs on it."""
    a = member("a")
    fleet = fleet_of(a)
    for _ in range(2):
        fleet.lease(CAPABILITY, None)
    fleet.drain(a)
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, None)
    fleet.release(a)
    assert fleet.find(a.id) is a
    fleet.release(a)
    assert (len(fleet.workers), shown(a)[0]) == (0, "gone")
    assert fleet.find(a.url) is None and fleet.find(a.id) is None


def test_each_transition_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """To the metrics and in one line of the log."""
    fleet = fleet_of(member("a", state=WorkerState.JOINING))
    (a,) = fleet.workers
    with caplog.at_level(logging.INFO):
        for event in (
            WorkerEvent.SERVES,
            WorkerEvent.SERVES,
            WorkerEvent.FULL,
            WorkerEvent.DOUBT,
            WorkerEvent.DIE,
            WorkerEvent.DIE,
            WorkerEvent.JOIN,
        ):
            fleet.on(a, event, "why")
        fleet.drain(a)
    assert fleet.moves == [
        ("joining", "ready"),
        ("ready", "busy"),
        ("busy", "suspect"),
        ("suspect", "dead"),
        ("dead", "joining"),
        ("joining", "draining"),
        ("draining", "gone"),
    ]
    assert [record.getMessage() for record in caplog.records][1] == "worker http://a:1: ready -> busy: why"
    assert len(caplog.records) == len(fleet.moves)
