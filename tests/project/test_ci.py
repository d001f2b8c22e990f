"""The scripts of CI: what they run with each change and at night, and their last line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLOSING = "=== 3 passed in 0.01s ==="

#: Stands in for ``make``, for an interpreter and for all that CI would install.
STAND_IN = f"""#!/bin/sh
case "$*" in
  "$FAILS") exit 7 ;;
  *list) ;;
  *stop) echo "an engine is stopped" ;;
  *) echo "{CLOSING}" ;;
esac
"""


def run(script: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit status and the lines of standard output and error as one."""
    done = subprocess.run(
        [script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30
    )
    return done.returncode, done.stdout.splitlines()


def steps(lines: list[str]) -> list[str]:
    """The steps that were started, in order."""
    return [line.partition(" s: ")[2] for line in lines if line.startswith("=== ") and " s: " in line]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with the scripts and stand-ins for all they call."""
    for path in ("bin/make", "bin/curl", "bin/etcd", ".venv/bin/python"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(STAND_IN)
        (tmp_path / path).chmod(0o755)
    for path in (".ci/run", ".ci/nightly", ".ci/steps", "scripts/test-engines"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("FAILS", "nothing")
    return tmp_path


def test_last_line_of_ci_is_that_of_the_last_tests(tree: Path) -> None:
    """Nothing comes after pytest's closing line, on either stream; each step is named before it."""
    status, lines = run(tree / ".ci" / "run")
    assert (status, lines[-1]) == (0, CLOSING)
    assert steps(lines) == [
        "make install",
        "make check",
        "make audit ARGS=--or-say-so",
        ".venv/bin/python -m scripts.prove_dockerfile",
        "make test",
        "make fuzz ARGS=--seed 13 --turns 3",
        "env OUTAGE_SECONDS=30 make test-system",
        "make silence",
        "make chaos",
        "make compile",
        "make test-compiled",
        "make test-engines",
    ]


def test_last_line_of_the_engine_tests_is_pytests_own(tree: Path) -> None:
    """Stopping the engines comes after it, without a word."""
    assert run(tree / "scripts" / "test-engines", str(tree / ".venv" / "bin" / "python"))[1][-1] == CLOSING


def test_step_that_fails_ends_ci_with_its_name_and_status(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "check")
    status, lines = run(tree / ".ci" / "run")
    assert status == 1
    assert lines[-1].startswith("!!! CI: 'make check' failed") and "(exit 7)" in lines[-1]
    assert steps(lines) == ["make install", "make check"]


NIGHTLY = (
    "make fuzz ARGS=--minutes 5",
    "make chaos ARGS=--minutes 10",
    "make chaos ARGS=--minutes 10 --processes 2",
    "make soak",
    "make silence SECONDS=650",
)


def test_night_ends_with_its_results_and_how_long_each_took(tree: Path) -> None:
    status, lines = run(tree / ".ci" / "nightly")
    assert (status, lines[-1]) == (0, "all 5 passed")
    assert steps(lines) == ["make install", *NIGHTLY, "results"]
    passed = [re.fullmatch(r"passed +\d+ s  (.+)", line) for line in lines[-6:-1]]
    assert tuple(line and line[1] for line in passed) == NIGHTLY


def test_part_of_the_night_that_fails_keeps_no_other_from_running(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "soak")
    status, lines = run(tree / ".ci" / "nightly")
    assert (status, lines[-1]) == (1, "!!! CI: 1 of 5 failed")
    assert steps(lines) == ["make install", *NIGHTLY, "results"]
    assert [line for line in lines if line.startswith("FAILED (7) ") and line.endswith(" make soak")]


def test_hosted_ci_calls_the_scripts_and_does_nothing_else() -> None:
    """Each step of the workflow is the checkout or a script, so that anybody can run what it runs."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    commands = re.findall(r"- (?:uses|run): (.+)", workflow)
    assert commands == ["actions/checkout@v4", "sudo .ci/run", "actions/checkout@v4", "sudo .ci/nightly"]
    assert re.search(r"schedule:\n +- cron: ", workflow)
