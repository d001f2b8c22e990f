"""Whether weights are new enough."""

from __future__ import annotations

import pytest

from gateway.fleet.weights import reaches


@pytest.mark.parametrize(
    ("version", "least", "enough"),
    [
        ("5", "5", True),
        ("12", "5", True),
        ("4", "5", False),
        ("0005", "5", True),
        ("-1", "0", False),
        ("default", "5", False),
        ("step-5", "step-5", True),
        ("step-6", "step-5", False),
        ("5", "step-5", False),
        (None, "5", False),
        (None, "default", False),
        ("9" * 5000, "5", False),
    ],
)
def test_integers_are_compared_and_all_else_has_to_be_equal(
    version: str | None, least: str, enough: bool
) -> None:
    assert reaches(version, least) is enough
