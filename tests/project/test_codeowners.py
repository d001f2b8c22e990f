"""CODEOWNERS covers every path, and what belongs to an engine by a line about that engine."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from gateway.formats.registry import load_formats

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "CODEOWNERS").read_text().splitlines() if line and not line.startswith("#")]
RULES = [(pattern, owners) for pattern, *owners in map(str.split, LINES)]


@cache
def paths() -> tuple[str, ...]:
    """Every path of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=30)
    if listed.returncode:
        pytest.skip("not a checkout: there is no list of paths to compare with")
    return tuple(path for path in listed.stdout.decode().split("\0") if path)


def folders(tree: str) -> set[str]:
    """The names of the folders in ``tree``."""
    return {path.split("/")[tree.count("/") + 1] for path in paths() if re.match(rf"{tree}/[^/]+/", path)}


def covers(pattern: str, path: str) -> bool:
    """The two kinds of pattern in use: a folder with all below it, and a file or the files of a folder."""
    if pattern.endswith("/"):
        return f"/{path}".startswith(pattern)
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]*"), f"/{path}") is not None


def rule_of(path: str) -> str | None:
    """The pattern that decides: the last one that matches."""
    return next((pattern for pattern, _ in reversed(RULES) if covers(pattern, path)), None)


def test_every_path_has_an_owner() -> None:
    assert [path for path in paths() if rule_of(path) is None] == []


@pytest.mark.parametrize("tree", ["gateway/formats", "fixtures", "tests/formats"])
def test_every_folder_of_an_engine_has_a_line_of_its_own(tree: str) -> None:
    """No catch-all decides for a format's code, its fixtures or its tests."""
    assert folders(tree)
    for folder in folders(tree):
        inside = [path for path in paths() if path.startswith(f"{tree}/{folder}/")]
        assert {rule_of(path) for path in inside} == {f"/{tree}/{folder}/"}


@pytest.mark.parametrize("name", load_formats())
def test_format_has_one_owner_in_all_its_places(name: str) -> None:
    places = ("gateway/formats", "gateway/sim", "fixtures", "tests/formats")
    assert len({tuple(dict(RULES)[f"/{place}/{name}/"]) for place in places}) == 1


def test_every_package_has_a_line_and_every_line_names_owners_and_covers_something() -> None:
    """A line for a removed path would apply to its successor. A package may have no tests yet."""
    for tree in ("gateway", "tests"):
        for package in folders(tree):
            assert any(pattern.startswith(f"/{tree}/{package}/") for pattern, _ in RULES), package
    for pattern, owners in RULES:
        assert owners and all(re.fullmatch(r"@[\w-]+/[\w-]+", owner) for owner in owners), pattern
        package = pattern.replace("/tests/", "/gateway/", 1)
        assert any(covers(pattern, path) or covers(package, path) for path in paths()), pattern
