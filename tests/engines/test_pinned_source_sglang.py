"""The sources of the engine that is installed name no field that the format has not heard of."""

from __future__ import annotations

import pytest

from scripts.engine_fields import differences, package_of
from scripts.engines import install

ENGINE = "sglang"


def test_installed_engine_has_no_unclassified_field() -> None:
    """An upgrade is a list to read: what is new fails, what is gone is told."""
    if not install.installed(ENGINE) and (reason := install.why_not(ENGINE)) is not None:
        pytest.skip(f"NOT TESTED, {ENGINE.upper()} CANNOT BE INSTALLED ON THIS MACHINE: {reason}")
    found = differences(ENGINE, package_of(ENGINE))
    gone = [str(one) for one in found if one.change == "gone"]
    print("\n".join(gone) or "nothing is gone")
    assert [str(one) for one in found if one.change == "new"] == []
