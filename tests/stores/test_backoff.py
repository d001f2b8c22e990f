"""The delays of a backoff."""

from __future__ import annotations

import random

import pytest

from gateway.stores.backoff import Backoff, BackoffDelays

DELAYS = BackoffDelays(first=1, longest=8, slow=100, most=1000)


@pytest.fixture
def backoff() -> Backoff:
    return Backoff(DELAYS, random.Random())


def test_delays_double_up_to_the_longest(backoff: Backoff) -> None:
    """Each is between half of its length and all of it."""
    for length in (1, 2, 4, *[8] * 5000):
        assert length / 2 <= backoff.failed() <= length


def test_reset_begins_with_the_first_delay_again(backoff: Backoff) -> None:
    assert backoff.fresh
    for _ in range(5):
        backoff.failed()
    assert not backoff.fresh
    backoff.reset()
    assert backoff.fresh
    assert backoff.failed() <= 1


def test_delays_of_gateways_differ() -> None:
    assert len({Backoff(DELAYS, random.Random(seed)).failed() for seed in range(20)}) == 20


def test_slow_failures_have_a_long_delay(backoff: Backoff) -> None:
    assert 50 <= backoff.failed(slow=True) <= 100


def test_delay_that_the_server_asks_for_is_never_shortened_but_bounded(backoff: Backoff) -> None:
    assert backoff.failed(at_least=1e9) <= 1100
    backoff.reset()
    assert all(30 <= backoff.failed(at_least=30) <= 33 for _ in range(50))
