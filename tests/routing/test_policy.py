"""How a worker is picked: evenly, whatever the policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing import policy
from gateway.routing.policy import POLICIES, LeastInFlight, LeastLoaded, RoundRobin


@dataclass(eq=False)
class Loaded:
    occupancy: int = 0
    others: int = 0

    @property
    def load(self) -> int:
        return self.occupancy + self.others


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_least_in_flight_shares_a_burst_exactly(seed: int, workers: int) -> None:
    picks, fleet = LeastInFlight(Random(seed)), [Loaded() for _ in range(workers)]
    for _ in range(40):
        picks.pick(fleet).occupancy += 1
    assert [worker.occupancy for worker in fleet] == [40 // workers] * workers


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers())
def test_least_in_flight_picks_a_worker_with_the_fewest_leases(loads: list[int], seed: int) -> None:
    assert LeastInFlight(Random(seed)).pick([Loaded(load) for load in loads]).occupancy == min(loads)


def test_ties_are_broken_at_random() -> None:
    picks, fleet = LeastInFlight(Random(1)), [Loaded(3), Loaded(1), Loaded(1), Loaded(1)]
    counts = Counter(fleet.index(picks.pick(fleet)) for _ in range(3000))
    assert set(counts) == {1, 2, 3} and min(counts.values()) > 900


def test_least_loaded_counts_requests_of_other_gateways() -> None:
    picks, fleet = LeastLoaded(Random(1)), [Loaded(0, 5), Loaded(2, 0), Loaded(1, 1)]
    for _ in range(6):
        picks.pick(fleet).occupancy += 1
    assert sorted(worker.load for worker in fleet) == [5, 5, 5]


def test_round_robin_takes_each_in_turn_starts_anywhere_and_works_while_workers_come_and_go() -> None:
    """Several gateways do not all begin with the first worker."""
    starts = set()
    for seed in range(50):
        picks, fleet = RoundRobin(Random(seed)), [Loaded(load) for load in (9, 0, 5)]
        order = [fleet.index(picks.pick(fleet)) for _ in range(12)]
        assert all(sorted(order[at : at + 3]) == [0, 1, 2] for at in range(10))
        starts.add(order[0])
        for size in (5, 1, 3, 2, 7):
            fleet = [Loaded() for _ in range(size)]
            assert picks.pick(fleet) in fleet
    assert starts == {0, 1, 2}


def test_random_picks_every_worker_equally_often() -> None:
    picks, fleet = policy.Random(Random(1)), [Loaded(load) for load in (9, 0, 5)]
    counts = Counter(fleet.index(picks.pick(fleet)) for _ in range(3000))
    assert min(counts.values()) > 900


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_picks_a_single_worker_and_the_same_with_the_same_seed(name: str) -> None:
    only, fleet = Loaded(7), [Loaded() for _ in range(5)]
    assert POLICIES[name](Random(0)).pick([only]) is only
    one, other = (POLICIES[name](Random(3)) for _ in range(2))
    assert all(one.pick(fleet) is other.pick(fleet) for _ in range(20))
