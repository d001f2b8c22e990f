"""The sources of the installed engine have no field that the format does not list."""

from __future__ import annotations

import pytest

from scripts.engine_fields import differences, package_of
from scripts.engines import install


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_installed_engine_has_no_unclassified_field(engine: str) -> None:
    """A new field fails the test, a removed one is printed: an upgrade lists its changes."""
    if not install.installed(engine) and (reason := install.why_not(engine)) is not None:
        pytest.skip(f"NOT TESTED, {engine.upper()} CANNOT BE INSTALLED ON THIS MACHINE: {reason}")
    found = differences(engine, package_of(engine))
    gone = [str(one) for one in found if one.change == "gone"]
    print("\n".join(gone) or "nothing is gone")
    assert [str(one) for one in found if one.change == "new"] == []
