"""Retired identifiers are used nowhere, and each kind of use would be noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import retired_names
from scripts.retired_names import FOLDERS, FUNCTIONS, WORDS


def test_no_folder_uses_a_retired_name() -> None:
    assert retired_names.check(*FOLDERS) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def told(): ...", "told"),
        ("async def left(): ...", "left"),
        ("class WholeReply: ...", "WholeReply"),
        ("def f(siblings_known): ...", "siblings_known"),
        ("what_was_said = 1", "what_was_said"),
        ("self._deaf = True", "_deaf"),
        ("REALM = 'x'", "REALM"),
        ("def _hold(): ...", "_hold"),
    ],
)
def test_each_definition_of_a_retired_name_is_reported_with_the_term_to_use(source: str, name: str) -> None:
    ((line, found, term),) = retired_names.uses(source)
    assert (line, found) == (1, name)
    assert term in {*WORDS.values(), *FUNCTIONS.values()}


@pytest.mark.parametrize(
    "source", ["left = 1", "hold_seconds = 1", "print(error.told)", "wholesale = 1", "# told", "'said'"]
)
def test_other_names_and_uses_are_not_reported(source: str) -> None:
    assert list(retired_names.uses(source)) == []


def test_violation_in_a_folder_is_reported_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gateway"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\nbarren = 2\n")
    monkeypatch.setattr(retired_names, "ROOT", tmp_path)
    assert retired_names.check("gateway") == ["gateway/a.py:2: barren (use: non-body bytes)"]
