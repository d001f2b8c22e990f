"""A growing series is distinguished from one that only varies."""

from __future__ import annotations

import pytest

from tests.chaos.run.flat import Series


def series(*values: float, share: float = 0.05, least: float = 0.0) -> Series:
    return Series("memory", " MiB", list(enumerate(values)), share, least)


def test_growth_is_that_of_the_line_through_all_samples() -> None:
    assert series(10, 11, 12, 13).growth == pytest.approx(3)
    assert series(10, 12, 10, 12, 10).growth == pytest.approx(0)


def test_leak_is_not_flat() -> None:
    leaking = series(*(100 + 0.2 * second + second % 3 for second in range(60)))
    assert not leaking.flat
    assert leaking.summary.endswith("NOT FLAT")


def test_trembling_and_falling_are_flat() -> None:
    assert series(*(100 + second % 3 for second in range(60))).flat
    assert series(*(100 - second for second in range(60))).flat


def test_small_growth_may_be_a_large_share_of_little() -> None:
    assert not series(1.0, 1.2, 1.4).flat
    assert series(1.0, 1.2, 1.4, least=0.5).flat
