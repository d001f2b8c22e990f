"""All workers: who may serve what, and leases that are exact."""

from __future__ import annotations

import logging
import ssl
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cards.values import CardValues
from gateway.errors import InvalidRequest, NoWorker, Overloaded, UnknownModel
from gateway.fleet.changes import BACKLOG, ChangeKind, Changes, Followers, forget
from gateway.fleet.registry import Fleet
from gateway.fleet.roster import candidates, roster_of
from gateway.fleet.states import USABLE, CordonSource, WorkerEvent, WorkerState
from gateway.fleet.weights import reaches
from gateway.fleet.worker import Worker
from gateway.fleet.worker_cordons import NO_WEIGHTS
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import POLICIES
from gateway.routing.rendezvous import Placement, RendezvousAffinity
from gateway.stores.record import WorkerRecord
from tests.fleet.support import CAPABILITY, fleet_with, member, worker_at
from tests.support.calls import calls_of

READY, BUSY, SUSPECT = WorkerState.READY, WorkerState.BUSY, WorkerState.SUSPECT
DEAD, JOINING, CORDONED = WorkerState.DEAD, WorkerState.JOINING, WorkerState.CORDONED


class Notes:
    """Metrics that note transitions, and the placements of leases for a key."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str]] = []
        self.placements: list[Placement] = []

    def worker_state_changed(self, before: WorkerState, after: WorkerState) -> None:
        self.moves.append((before, after))

    def key_assigned(self, placement: Placement) -> None:
        self.placements.append(placement)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.mark.parametrize("state", WorkerState)
@pytest.mark.parametrize("model", [None, "m", "other"])
def test_only_usable_workers_are_leased(state: WorkerState, model: str | None) -> None:
    fleet = fleet_with(member("a", "m", state=state))
    if state in USABLE:
        fleet.lease(CAPABILITY, model)
    else:
        with pytest.raises(NoWorker):
            fleet.lease(CAPABILITY, model)


def test_ready_workers_are_used_before_busy_before_suspect() -> None:
    suspect, ready = member("s", "m", state=SUSPECT), member("r", "m")
    busy = member("b", "m", "n", state=BUSY)
    roster = roster_of(CAPABILITY, [suspect, busy, ready])
    tiers = roster.of_model("m")
    assert tiers == ((ready,), (busy,), (suspect,))
    for tried, next_ones in (([], [ready]), ([ready], [busy]), ([ready, busy], [suspect])):
        assert list(candidates(tiers, tried)) == next_ones
    assert list(candidates(tiers, [ready, busy, suspect])) == []
    assert list(candidates(roster.of_model("n"), ())) == [busy]
    assert set(roster.workers) == {suspect, busy, ready}


def test_roster_of_a_large_fleet_costs_a_few_calls_for_each_worker() -> None:
    """It is made anew after each change of a state."""
    workers = [member(f"w{n}", "m") for n in range(512)]
    assert calls_of(lambda: roster_of(CAPABILITY, workers)) < 14 * len(workers)


def test_membership_and_states_count_from_the_next_request_on() -> None:
    a, b, c = map(member, "abc")
    fleet = fleet_with(a)
    assert list(fleet.usable(CAPABILITY)) == [a]
    for each in (b, c):
        fleet.add(each)
    fleet.drain(c)
    for _ in range(2):
        assert list(fleet.usable(CAPABILITY)) == [a, b]
        fleet.apply_event(a, WorkerEvent.DIE, "gone")
        assert list(fleet.usable(CAPABILITY)) == [b]
        assert a.reason == "gone"
        fleet.apply_event(a, WorkerEvent.DIE, "still gone")
        fleet.apply_event(a, WorkerEvent.SERVES)


def test_other_capability_is_not_leased() -> None:
    fleet = fleet_with(member("a", capability="other"), member("b", usable=False))
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, None)
    assert fleet.lease("other", None).url == "http://a:1"


@given(st.lists(st.integers(0, 9), max_size=60))
def test_leases_are_exact(steps: list[int]) -> None:
    fleet = fleet_with(member("a"), member("b"), member("c"))
    held: list[Worker] = []
    for step in steps:
        if step < 5 or not held:
            held.append(fleet.lease(CAPABILITY, None))
        else:
            fleet.release(held.pop(step % len(held)))
        assert [worker.in_flight for worker in fleet.workers] == [held.count(each) for each in fleet.workers]


@pytest.mark.parametrize("key", [None, "k"])
def test_worker_that_was_tried_is_not_leased_again(key: str | None) -> None:
    fleet = fleet_with(*(member(name, "m") for name in "abc"))
    tried: list[Worker] = []
    for _ in range(3):
        tried.append(fleet.lease(CAPABILITY, "m", tried, key))
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, "m", tried, key)
    assert [worker.in_flight for worker in fleet.workers] == [1, 1, 1]


@pytest.mark.parametrize("mode", POLICIES)
def test_key_goes_home_whatever_the_policy(mode: str, notes: Notes) -> None:
    fleet = fleet_with(*map(member, "abcd"), policy=POLICIES[mode](Random(0)), metrics=notes)
    for key in map(str, range(20)):
        assert len({fleet.lease(CAPABILITY, None, (), key).url for _ in range(3)}) == 1
    assert notes.placements == [Placement.HOME] * 60
    assert len({fleet.lease(CAPABILITY, None).url for _ in range(60)}) > 1 and len(notes.placements) == 60


@pytest.mark.parametrize("event", [WorkerEvent.DIE, WorkerEvent.FULL, WorkerEvent.DOUBT, WorkerEvent.CORDON])
def test_key_whose_home_is_not_usable_goes_to_one_other_worker_until_it_is(
    event: WorkerEvent, notes: Notes
) -> None:
    fleet = fleet_with(*map(member, "abcd"), metrics=notes)
    home = fleet.lease(CAPABILITY, None, (), "k")
    fleet.apply_event(home, event)
    settled = {fleet.lease(CAPABILITY, None, (), "k") for _ in range(9)}
    assert len(settled) == 1 and settled != {home}
    assert notes.placements == [Placement.HOME] + [Placement.UNAVAILABLE] * 9
    home.state = READY
    fleet.apply_event(home, WorkerEvent.FULL)
    fleet.apply_event(home, WorkerEvent.SERVES)
    assert fleet.lease(CAPABILITY, None, (), "k") is home


def test_home_of_a_key_is_among_those_that_serve_its_model(notes: Notes) -> None:
    ours, others = [member(name, "m") for name in "abc"], [member(name, "n") for name in "defghi"]
    fleet = fleet_with(*ours, *others, metrics=notes)
    homes = {key: fleet.lease(CAPABILITY, "m", (), key) for key in map(str, range(30))}
    assert set(homes.values()) == set(ours) and set(notes.placements) == {Placement.HOME}
    fleet.apply_event(ours[0], WorkerEvent.DIE)
    notes.placements.clear()
    for key, home in homes.items():
        assert (fleet.lease(CAPABILITY, "m", (), key) is home) is (home is not ours[0])
    expected = {True: Placement.UNAVAILABLE, False: Placement.HOME}
    assert notes.placements == [expected[home is ours[0]] for home in homes.values()]


@pytest.mark.parametrize("factor", [0, 1.5])
def test_home_without_a_free_slot_is_passed_over(factor: float, notes: Notes) -> None:
    affinity = RendezvousAffinity(factor)
    fleet = fleet_with(*map(member, "ab"), most_in_flight=2, affinity=affinity, metrics=notes)
    homes = [fleet.lease(CAPABILITY, None, (), "k") for _ in range(4)]
    assert homes[0] is homes[1] is not homes[2] is homes[3]
    assert notes.placements == [Placement.HOME] * 2 + [Placement.OVERLOADED] * 2
    with pytest.raises(Overloaded):
        fleet.lease(CAPABILITY, None, (), "k")
    fleet.release(homes[0])
    assert fleet.lease(CAPABILITY, None, (), "k") is homes[0]


def test_home_that_is_not_usable_is_unavailable_although_others_are_full(notes: Notes) -> None:
    fleet = fleet_with(*map(member, "abc"), most_in_flight=1, metrics=notes)
    home = fleet.lease(CAPABILITY, None, (), "k")
    fleet.apply_event(home, WorkerEvent.DIE)
    assert len({home, *(fleet.lease(CAPABILITY, None, (), "k") for _ in range(2))}) == 3
    assert notes.placements == [Placement.HOME] + [Placement.UNAVAILABLE] * 2


@pytest.mark.parametrize(
    ("members", "model", "leased"),
    [
        pytest.param(["m", "n", "m n"], "m", "ac", id="named model"),
        pytest.param(["m", "n", "m n"], "n", "bc", id="other model"),
        # With one base model the engine judges the name: it may be an adapter that was loaded a moment ago.
        pytest.param(["m m-lora", "m"], "new-lora", "ab", id="unknown adapter"),
        pytest.param(["m m-lora", "m"], "m-lora", "a", id="adapter"),
        pytest.param(["m", ""], None, "ab", id="model not reported"),
        pytest.param(["m", ""], "else", "ab", id="model not reported, unknown name"),
    ],
)
def test_model_is_leased_from_workers_that_may_have_it(
    members: list[str], model: str | None, leased: str
) -> None:
    fleet = fleet_with(*(member(name, *models.split()) for name, models in zip("abc", members, strict=False)))
    found = {fleet.lease(CAPABILITY, model).address.host for _ in range(20)}
    assert found == set(leased)


def test_registered_model_stands_in_for_one_that_is_not_reported() -> None:
    silent, other = member("a"), member("b", "m")
    silent.record = WorkerRecord(silent.url, model="registered")
    assert roster_of(CAPABILITY, [silent, other]).of_model("registered") == ((silent,),)


def test_model_that_no_member_serves_is_unknown() -> None:
    fleet = fleet_with(member("a", "m"), member("b", "n"))
    with pytest.raises(UnknownModel) as caught:
        fleet.lease(CAPABILITY, "x" * 10_000)
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("others", [("n",), ("n", "o")])
@pytest.mark.parametrize("state", [DEAD, CORDONED, JOINING])
def test_model_whose_worker_is_not_usable_now_is_neither_unknown_nor_served_by_others(
    others: tuple[str, ...], state: WorkerState
) -> None:
    fleet = fleet_with(member("a", "m", state=state), *(member(name, name) for name in others))
    with pytest.raises(NoWorker):
        fleet.lease(CAPABILITY, "m")
    with pytest.raises(InvalidRequest) as caught:
        fleet.lease(CAPABILITY, None)
    assert caught.value.param == "model"


def test_models_that_usable_workers_serve_are_listed_once() -> None:
    a = member("a", "m", "lora")
    fleet = fleet_with(a, member("b", "m"), member("c", "n", state=DEAD), member("d", "o", usable=False))
    assert set(fleet.models()) == {"m", "lora"}
    assert fleet.models()["m"] is a.infos["echo"]


class IdleConnection:
    """A connection that could carry another request."""

    closed = False
    reply_head = None

    def recycle(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


async def test_pool_of_a_worker_that_leaves_keeps_no_connection() -> None:
    a, b = member("a"), member("b")
    fleet = fleet_with(a, b)
    fleet.drain(a)
    fleet.close()
    for worker in (a, b):
        late: Any = IdleConnection()
        worker.pool.give_back(late)
        assert late.closed


def test_one_trust_store_for_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the system's certificates takes tens of ms, so it is done once, and only for https."""
    made: list[ssl.SSLContext] = []

    def store() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[0]

    monkeypatch.setattr(ssl, "create_default_context", store)
    fleet_with(worker_at("http://c"))
    assert not made
    fleet_with(worker_at("https://a"), worker_at("https://b"))
    assert len(made) == 1


# -- followers (joins, leaves and transitions in order: tests/control/test_events.py)


def followed(changes: Changes) -> list[tuple[str, str, str]]:
    """Kind, worker and state of each change that waits."""
    waiting = [changes.get_nowait() for _ in range(changes.qsize())]
    return [(change.kind, change.worker.address.host, change.state) for change in waiting if change]


@pytest.mark.parametrize("replaced", [False, True])
def test_worker_that_leaves_or_is_replaced_leaves_first_and_causes_no_more_changes(replaced: bool) -> None:
    """Its exchanges go on and may find it dead, which says nothing about its successor."""
    a = member("a", state=DEAD)
    fleet = fleet_with(a)
    left = [("state", "a", "draining"), ("left", "a", "gone")]
    with fleet.follow() as changes:
        if replaced:
            fleet.add(member("a", state=JOINING))
        else:
            fleet.drain(a)
        fleet.apply_event(a, WorkerEvent.DIE, "refused a connection")
        assert followed(changes) == left + [("joined", "a", "joining")] * replaced


def test_follower_that_stopped_gets_nothing_and_is_not_referenced() -> None:
    followers = Followers()
    with pytest.raises(ZeroDivisionError), followers.follow() as changes:
        raise ZeroDivisionError
    followers.notify(ChangeKind.JOINED, member("a"))
    assert changes.empty() and len(followers) == 0


def test_full_backlog_is_replaced_by_none() -> None:
    followers, a = Followers(), member("a")
    with followers.follow() as slow, followers.follow() as swift:
        for _ in range(BACKLOG):
            followers.notify(ChangeKind.STATE, a)
        assert len(followed(swift)) == BACKLOG
        followers.notify(ChangeKind.LEFT, a)
        followers.notify(ChangeKind.JOINED, a)
        assert slow.get_nowait() is None
        assert [kind for kind, *_ in followed(slow)] == ["joined"]
        assert [kind for kind, *_ in followed(swift)] == ["left", "joined"]
        for _ in range(3 * BACKLOG):
            followers.notify(ChangeKind.STATE, a)
            assert slow.qsize() <= BACKLOG
        forget(slow)
        assert slow.empty()


def weighed(least: str | None, version: str | None) -> tuple[Fleet, Worker]:
    """A worker that reports its weight version, in a fleet that wants ``least``."""
    worker = worker_at("http://a:1")
    fleet = fleet_with(worker, min_weight_version=least)
    describe(fleet, worker, version)
    return fleet, worker


def shown(worker: Worker) -> tuple[str, str]:
    """State and reason, as the API has them."""
    return worker.state.value, worker.reason


def describe(fleet: Fleet, worker: Worker, version: str | None) -> None:
    """Do what a good probe does."""
    info = WorkerInfo("engine", CAPABILITY, True, models=("m",), card=CardValues(weight_version=version))
    fleet.describe(worker, {"echo": info})
    fleet.apply_event(worker, WorkerEvent.SERVES)


def test_worker_is_ready_once_its_last_cordon_ends() -> None:
    a = member("a", "m")
    fleet = fleet_with(a)
    fleet.cordon(a, CordonSource.OWNER, "mine")
    fleet.cordon(a, CordonSource.PAUSED, "paused")
    assert shown(a) == ("held", "mine; paused")
    for event in (WorkerEvent.SERVES, WorkerEvent.FULL, WorkerEvent.DOUBT):
        fleet.apply_event(a, event)
        assert shown(a) == ("held", "mine; paused")
    for _ in range(2):
        fleet.uncordon(a, CordonSource.OWNER)
        assert shown(a) == ("held", "paused")
    fleet.uncordon(a, CordonSource.PAUSED)
    assert shown(a) == ("ready", "")


@pytest.mark.parametrize("state", [JOINING, DEAD])
def test_worker_that_is_cordoned_while_it_does_not_serve_comes_back_cordoned(state: WorkerState) -> None:
    """A death ends no cordon: what comes back may have old weights."""
    a = member("a", "m", state=state)
    fleet = fleet_with(a)
    fleet.cordon(a, CordonSource.OWNER, "held")
    assert a.state is state
    fleet.apply_event(a, WorkerEvent.SERVES)
    assert shown(a)[0] == "held"
    fleet.apply_event(a, WorkerEvent.DIE)
    fleet.apply_event(a, WorkerEvent.SERVES)
    assert shown(a)[0] == "held"


def test_worker_is_cordoned_while_its_weights_are_too_old() -> None:
    fleet, worker = weighed("5", "4")
    assert shown(worker) == ("held", "its weight version is 4, and 5 is wanted")
    for version, state in (("5", "ready"), ("4", "held"), ("6", "ready")):
        describe(fleet, worker, version)
        assert shown(worker)[0] == state
    assert weighed("5", None)[1].reason == "its weight version is not reported, and 5 is wanted"
    assert weighed(None, None)[1].state is READY


def test_new_weights_end_the_cordon_of_the_owner() -> None:
    fleet, worker = weighed("5", "4")
    for version, state in (("5", "ready"), ("6", "held")):
        fleet.cordon(worker, CordonSource.OWNER, "mine")
        describe(fleet, worker, version)
        assert shown(worker)[0] == state


def test_worker_that_was_uncordoned_keeps_the_weights_it_has() -> None:
    """Until they change, or another process has them."""
    fleet, worker = weighed("5", "4")
    for version, state in (("4", "ready"), ("3", "held")):
        fleet.uncordon(worker)
        describe(fleet, worker, version)
        assert shown(worker)[0] == state
    fleet.uncordon(worker)
    fleet.apply_event(worker, WorkerEvent.DIE)
    worker.cordons.allowed_weights = NO_WEIGHTS
    describe(fleet, worker, "3")
    assert shown(worker)[0] == "held"


def test_worker_that_drains_leaves_with_its_last_lease() -> None:
    a = member("a")
    fleet = fleet_with(a)
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


def test_each_transition_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture, notes: Notes) -> None:
    a = member("a", state=JOINING)
    fleet = fleet_with(a, metrics=notes)
    with caplog.at_level(logging.INFO):
        for event in ("serves", "serves", "full", "doubt", "die", "die", "join"):
            fleet.apply_event(a, WorkerEvent(event), "why")
        fleet.drain(a)
    passed = ["joining", "ready", "busy", "suspect", "dead", "joining", "draining", "gone"]
    assert notes.moves == list(pairwise(passed))
    assert [record.getMessage() for record in caplog.records][1] == "worker http://a:1: ready -> busy: why"
    assert len(caplog.records) == len(notes.moves)
    assert not any(record.getMessage().endswith(" ") for record in caplog.records)


@pytest.mark.parametrize(
    ("versions", "least", "enough"),
    [
        (["5", "12", "0005"], "5", True),
        (["4", "default", None, "9" * 5000], "5", False),
        (["-1"], "0", False),
        (["step-5"], "step-5", True),
        (["step-6", "5", None], "step-5", False),
    ],
)
def test_integers_are_compared_and_all_else_has_to_be_equal(
    versions: list[str | None], least: str, enough: bool
) -> None:
    assert {reaches(version, least) for version in versions} == {enough}


def test_format_sees_the_prefix_the_key_and_its_own_WorkerInfo() -> None:
    worker = worker_at("http://worker/p/", authorization=b"Bearer secret")
    assert worker.view("relayed").info is None
    worker.infos = {"one": WorkerInfo("e", "c", False), "two": WorkerInfo("theirs", "c", True)}
    view = worker.view("one")
    assert (view.prefix, view.authorization, view.info) == (b"/p", b"Bearer secret", worker.infos["one"])
    assert worker.view("two").info is worker.view("relayed").info is worker.infos["two"]
    assert "secret" not in repr(worker) + repr(view) + repr(worker.record)


def test_capability_that_is_not_usable_is_not_offered() -> None:
    worker = worker_at("http://worker")
    assert worker.offers("c") is None
    worker.infos = {"one": WorkerInfo("e", "c", False, reason="off"), "two": WorkerInfo("e", "d", True)}
    assert worker.offers("c") is None
    assert worker.offers("d") is worker.infos["two"]
