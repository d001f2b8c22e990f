"""Whether weights are new enough."""

from __future__ import annotations

import pytest

from gateway.fleet.weights import reaches


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
