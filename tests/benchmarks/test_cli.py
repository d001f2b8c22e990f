"""The benchmarks run from the command line, with shrunk loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.cli import main


def test_short_run_without_peers_and_wrk_measures_the_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every load runs once; missing programs are reported, and no measurement has an error."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(peers, "_SBIN", str(tmp_path))
    file = tmp_path / "found.json"
    words = ["--only", "table,idle-memory", "--connections", "4", "--seconds", "0.15", "--json", str(file)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.count("**MISSING:**") == 5
    assert "wrk is not on PATH (apt-get install wrk)" in text
    assert "nothing to compare with" in text
    found = json.loads(file.read_text())
    assert len(found["table"]) == 7
    for row in found["table"].values():
        assert row["errors"] == {} and row["speeds"]["gateway"] > 0, row["title"]
        assert row["generator"] == "own"
    assert found["table"]["unary"]["values"]["gateway"] > 0
    assert found["bounds"]["idle-memory"]["note"].endswith("0 errors")
    assert found["machine"]["cores"] >= 1


def test_unknown_name_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "unray"])
    assert "there is no unray; there are table, bounds, growth, unary" in capsys.readouterr().err


def test_folder_without_a_gateway_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "unary", "--gateway", str(tmp_path)])
    assert "has no gateway" in capsys.readouterr().err


def test_gateway_that_does_not_start_ends_the_run_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").touch()
    (tmp_path / "gateway" / "__main__.py").write_text("raise SystemExit('not today')")
    assert main(["--only", "unary", "--gateway", str(tmp_path)]) == 1
    text = capsys.readouterr().err
    assert "gateway did not come up" in text and "not today" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--json", "/no/such/folder/found.json"], "/no/such/folder/found.json cannot be written"),
        (["--read", "/no/such/file.json"], "/no/such/file.json: No such file or directory"),
        (["--read", __file__], "is no report of this harness"),
        (["--rounds", "0"], "'0' is not a number of 1 or more"),
        (["--connections", "-1"], "'-1' is not a number of 1 or more"),
        (["--seconds", "0"], "'0' is not a number of seconds over 0"),
        (["--seconds", "nan"], "'nan' is not a number of seconds over 0"),
    ],
)
def test_bad_value_is_refused_before_anything_is_measured(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "unary", *words])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
