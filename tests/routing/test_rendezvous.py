"""Every key has a home: the same for everybody, kept as long as it can be, and never a grave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.rendezvous import ALLOWANCE, Placement, RendezvousAffinity, seed_of, weights

KEYS = [f"sample-{number}" for number in range(8000)]


@dataclass(eq=False)
class Member:
    name: str
    in_flight: int = 0

    def __post_init__(self) -> None:
        self.seed = seed_of(self.name)


def fleet(count: int, first: int = 0) -> list[Member]:
    """As like each other as the URLs of a rack."""
    return [Member(f"http://10.0.0.{number}:30000") for number in range(first, first + count)]


def homes(workers: Sequence[Member]) -> dict[str, str]:
    place = RendezvousAffinity().assign
    return {key: place(key, workers, workers)[0].name for key in KEYS}


@pytest.mark.parametrize("count", [2, 3, 8, 32])
def test_keys_are_shared_evenly(count: int) -> None:
    shares = Counter(homes(fleet(count)).values())
    fair = len(KEYS) / count
    assert len(shares) == count
    assert all(abs(share - fair) < 5 * fair**0.5 for share in shares.values())


@given(st.text(), st.integers(1, 12), st.randoms())
def test_home_depends_on_names_alone(key: str, count: int, chance: Random) -> None:
    ours, theirs = fleet(count), fleet(count)
    chance.shuffle(theirs)
    assert (
        RendezvousAffinity().assign(key, ours, ours)[0].name
        == RendezvousAffinity().assign(key, theirs, theirs)[0].name
    )


def test_homes_never_change_between_versions() -> None:
    """Gateways of different versions may share a fleet."""
    members = fleet(8)
    assert [members.index(home_of(key, members)) for key in KEYS[:16]] == [
        3, 2, 4, 3, 4, 0, 4, 3, 6, 6, 0, 6, 6, 2, 7, 1,
    ]  # fmt: skip


def test_worker_that_leaves_or_joins_moves_its_own_keys_only_and_of_all_others_alike() -> None:
    before, after = homes(fleet(8)), homes(fleet(7, first=1))
    gone = fleet(1)[0].name
    assert all(after[key] == home for key, home in before.items() if home != gone)
    moved = Counter(after[key] for key, home in before.items() if home == gone)
    fair = sum(moved.values()) / 7
    assert len(moved) == 7 and all(abs(share - fair) < 5 * fair**0.5 for share in moved.values())


@given(st.text(), st.lists(st.text(), min_size=1, max_size=20, unique=True))
def test_no_two_workers_have_the_same_weight(key: str, names: list[str]) -> None:
    """Else the order in which they joined would decide."""
    found = weights(key, [Member(name) for name in names])
    assert len(set(found)) == len(names) and all(0 < weight < 2**64 for weight in found)


def test_home_that_gets_no_requests_counts_as_unavailable() -> None:
    """The key stays at its next worker as long as that lasts."""
    members = fleet(4)
    home, placement = RendezvousAffinity().assign("k", members, members)
    assert placement is Placement.HOME
    rest = [member for member in members if member is not home]
    assert {RendezvousAffinity().assign("k", rest, members)[1] for _ in range(3)} == {Placement.UNAVAILABLE}
    assert len({RendezvousAffinity().assign("k", rest, members)[0].name for _ in range(3)}) == 1
    other = next(key for key in KEYS if home_of(key, members) is not home)
    assert RendezvousAffinity().assign(other, rest, members) == (home_of(other, members), Placement.HOME)


def home_of(key: str, members: Sequence[Member]) -> Member:
    return RendezvousAffinity().assign(key, members, members)[0]


def test_key_of_many_requests_is_shared_once_its_home_is_overloaded() -> None:
    members, place = fleet(8), RendezvousAffinity(1.5).assign
    for _ in range(800):
        place("hot", members, members)[0].in_flight += 1
    loads = sorted(member.in_flight for member in members)
    assert sum(loads) == 800
    assert loads[-1] <= 1.5 * 100 + 1
    idle = fleet(8)
    assert members[idle.index(home_of("hot", idle))].in_flight >= loads[-1] - 1


def test_home_with_few_requests_is_never_overloaded() -> None:
    """A full cache is worth more than idle workers. Nor is any if all have many, or without a factor."""
    members, place = fleet(8), RendezvousAffinity(1).assign
    home = home_of("k", members)
    for _ in range(ALLOWANCE):
        chosen, placement = place("k", members, members)
        assert (chosen, placement) == (home, Placement.HOME)
        chosen.in_flight += 1
    chosen, placement = place("k", members, members)
    assert chosen is not home and placement is Placement.OVERLOADED
    assert RendezvousAffinity(0).assign("k", members, members) == (home, Placement.HOME)
    for member in members:
        member.in_flight = 500
    home.in_flight = 700
    assert RendezvousAffinity(1.5).assign("k", members, members) == (home, Placement.HOME)


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=12), st.floats(1, 4), st.text())
def test_some_worker_is_always_assigned(loads: list[int], factor: float, key: str) -> None:
    members = [Member(f"w{number}", load) for number, load in enumerate(loads)]
    chosen, _ = RendezvousAffinity(factor).assign(key, members, members)
    assert chosen.in_flight <= max(ALLOWANCE, factor * (sum(loads) + 1) / len(loads)) + 1
