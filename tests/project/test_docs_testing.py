"""docs/testing.md: each promise has a home and a black-box test that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
PROMISES = re.findall(r"^\| (P\d+) \| (.+\.) \| `(\S+)` \| `(\S+)` \|$", PAGE, re.MULTILINE)


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    source = ROOT / file
    return source.is_file() and bool(re.search(rf"^(async )?def {name}\(", source.read_text(), re.MULTILINE))


def test_page_has_all_promises_in_order() -> None:
    assert [promise for promise, *_ in PROMISES] == [f"P{number}" for number in range(1, 18)]


@pytest.mark.parametrize(("promise", "text", "home", "black_box"), PROMISES)
def test_promise_has_a_home_and_a_black_box_test(promise: str, text: str, home: str, black_box: str) -> None:
    assert exists(home) and exists(black_box) and home != black_box


def test_each_promise_has_a_home_of_its_own() -> None:
    homes = [home for *_, home, _ in PROMISES]
    assert len(set(homes)) == len(homes)


def test_missing_test_is_noticed() -> None:
    assert not exists("tests/project/test_docs_testing.py::test_of_nothing")
    assert not exists("tests/project/test_nothing.py::test_of_nothing")
