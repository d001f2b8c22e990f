"""Retired identifiers are used nowhere, and each kind of use would be noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import retired_names


def test_no_folder_uses_a_retired_name() -> None:
    assert retired_names.check(*retired_names.FOLDERS) == []


def test_definition_of_a_retired_name_is_reported_with_its_place_and_the_term_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = (
        "def told(siblings_known): ...\nasync def left(): ...\nclass WholeReply: ...\nwhat_was_said = 1\n"
        "self._deaf = True\nREALM = 'x'\ndef _hold(): ...\nbarren = 2\n"
    )
    other = "left = 1\nhold_seconds = 1\nprint(error.told)\nwholesale = 1\n# told\n'said'\n"
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "a.py").write_text(used + other)
    monkeypatch.setattr(retired_names, "ROOT", tmp_path)
    found = retired_names.check("gateway")
    assert "gateway/a.py:8: barren (use: non-body bytes)" in found
    names = [line.split(": ")[1].partition(" ")[0] for line in found]
    expected = "told siblings_known left WholeReply what_was_said _deaf REALM _hold barren"
    assert sorted(names) == sorted(expected.split())
