"""The delays of a backoff."""

from __future__ import annotations

import random

from gateway.stores.backoff import Backoff, BackoffDelays

DELAYS = BackoffDelays(first=1, longest=8, slow=100, most=1000)


def test_delays_double_up_to_the_longest_and_begin_again_after_a_reset() -> None:
    """Each is between half of its length and all of it."""
    backoff = Backoff(DELAYS, random.Random())
    for _ in range(2):
        assert backoff.fresh
        for length in (1, 2, 4, *[8] * 5000):
            assert length / 2 <= backoff.failed() <= length
        assert not backoff.fresh
        backoff.reset()
    assert 50 <= backoff.failed(slow=True) <= 100


def test_delays_of_gateways_differ() -> None:
    assert len({Backoff(DELAYS, random.Random(seed)).failed() for seed in range(20)}) == 20


def test_delay_that_the_server_asks_for_is_never_shortened_but_bounded() -> None:
    backoff = Backoff(DELAYS, random.Random())
    assert backoff.failed(at_least=1e9) <= 1100
    backoff.reset()
    assert all(30 <= backoff.failed(at_least=30) <= 33 for _ in range(50))
