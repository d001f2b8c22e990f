"""docs/life-of-a-request.md agrees with the code."""

from __future__ import annotations

import re

import pytest

from gateway import errors
from gateway.errors import GatewayError
from gateway.exchange import ENDED, TRANSITIONS
from scripts.state_diagram import PAGE, diagram

TEXT = PAGE.read_text()
HANDLER = PAGE.parents[1] / "gateway" / "proxy" / "handler.py"
HEADINGS = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
FAILURES = re.findall(r"`([a-z_]+)`\s+\((\d{3})\)", TEXT)


def phases_of(source: str) -> list[str]:
    """``1 accept`` and so on, from comments that start with a phase's number."""
    comments = re.findall(r"^\s*# (\d.*)$", source, re.MULTILINE)
    return [" ".join(phase) for comment in comments for phase in re.findall(r"(\d),? ([a-z]+)", comment)]


def test_headings_are_the_handlers_phases() -> None:
    """The page has a section for each phase, in the order of the handler, which stays short."""
    source = HANDLER.read_text()
    phases = phases_of(source)
    assert len(phases) == 9 and source.count("\n") < 250
    assert [*phases, "States"] == HEADINGS


@pytest.mark.parametrize(
    ("source", "phases"),
    [
        ("    # 1 accept\n    # 2 parse\n", ["1 accept", "2 parse"]),
        ("# 4 lease, 5 open; 9, release, is Run.close", ["4 lease", "5 open", "9 release"]),
        ("# a comment of 3 words\nx = 1  # 2 at the end", []),
    ],
)
def test_phases_are_read_from_comments(source: str, phases: list[str]) -> None:
    """Only a comment of its own that starts with a number names phases."""
    assert phases_of(source) == phases


@pytest.mark.parametrize(("code", "status"), sorted(set(FAILURES)))
def test_failure_has_the_status_on_the_page(code: str, status: str) -> None:
    """Each failure on the page exists, and has that status."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    statuses = {kind.code: kind.status for kind in kinds if issubclass(kind, GatewayError)}
    assert statuses[code] == int(status)


def test_page_names_every_failure_of_an_exchange() -> None:
    """A kind that is added has a place in the life of a request, or is listed here."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.code for kind in kinds if issubclass(kind, GatewayError)}
    assert {code for code, _ in FAILURES} == codes - {"method_not_allowed", "process_died"}


def test_diagram_is_the_table() -> None:
    """`python -m scripts.state_diagram` brings the page up to date."""
    assert diagram() in TEXT
    assert TEXT.count("```mermaid") == 1


def test_diagram_shows_every_transition() -> None:
    """Only late cancellations are left out."""
    arrows = re.findall(r"^    (\w+) --> (\w+): (\w+)$", diagram(), re.MULTILINE)
    assert set(arrows) == {
        (state, following or state, event)
        for state, row in TRANSITIONS.items()
        for event, following in row.items()
        if state not in ENDED
    }
