"""docs/reliability.md: each case has its test, each test its case, and peers are those that were measured."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
CASES = PAGE.split("\n## The field's failures\n")[1].split("\n## ")[0]
PEERS = {"sglang-router", "smg", "vllm-router", "Dynamo"}


def cases() -> list[list[str]]:
    """The cells of each row of the table."""
    lines = [line for line in CASES.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_every_case_names_a_file_with_tests_and_every_such_file_is_named() -> None:
    """No row promises what nothing holds."""
    named = [re.findall(r"`(test_\w+\.py)`", row[3]) for row in cases()]
    assert all(named)
    files = {file.name for file in (ROOT / "tests" / "chaos").glob("test_*.py")}
    assert {name for names in named for name in names} == files
    for name in files:
        assert re.search(r"^async def test_", (ROOT / "tests" / "chaos" / name).read_text(), re.MULTILINE)


def test_every_case_says_where_it_was_reported_what_peers_do_and_what_the_gateway_does() -> None:
    for row in cases():
        case, peers, ours, _ = row
        assert re.search(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+\)", case)
        assert peers in ("not measured", "the same") or any(peer in peers for peer in PEERS)
        assert ours


def test_every_peer_is_named_with_the_version_that_was_measured() -> None:
    for peer in PEERS:
        assert re.search(rf"{peer} \d+\.\d+", CASES)


def test_all_fifteen_cases_are_there() -> None:
    assert len(cases()) == 15
