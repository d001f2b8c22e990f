"""Pauses: they grow, they differ, and a server's wish is respected."""

from __future__ import annotations

import random

import pytest

from gateway.stores.backoff import Backoff, BackoffDelays

PAUSES = BackoffDelays(first=1, longest=8, slow=100, most=1000)


@pytest.fixture
def backoff() -> Backoff:
    return Backoff(PAUSES, random.Random())


def test_pauses_double_up_to_the_longest(backoff: Backoff) -> None:
    """Each lies between half of its length and all of it."""
    for length in (1, 2, 4, 8, 8, 8):
        assert length / 2 <= backoff.failed() <= length


def test_pauses_start_anew_after_something_worked(backoff: Backoff) -> None:
    assert backoff.fresh
    for _ in range(5):
        backoff.failed()
    assert not backoff.fresh
    backoff.reset()
    assert backoff.fresh
    assert backoff.failed() <= 1


def test_gateways_do_not_come_back_in_step() -> None:
    assert len({Backoff(PAUSES, random.Random(seed)).failed() for seed in range(20)}) == 20


def test_what_only_a_person_can_mend_is_tried_slowly(backoff: Backoff) -> None:
    assert 50 <= backoff.failed(slow=True) <= 100


def test_wish_of_a_server_is_never_cut_short(backoff: Backoff) -> None:
    assert all(30 <= backoff.failed(at_least=30) <= 33 for _ in range(50))


def test_wish_of_a_server_has_a_bound(backoff: Backoff) -> None:
    assert backoff.failed(at_least=1e9) <= 1100


def test_failures_without_end_are_counted(backoff: Backoff) -> None:
    for _ in range(5000):
        backoff.failed()
    assert backoff.failed() <= 8
