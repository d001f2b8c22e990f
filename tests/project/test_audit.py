"""``make audit`` finds a licence that is not allowed, a known vulnerability, and a missing answer."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import audit
from scripts.audit import NOT_ASKED, WRONG

FLAW = {"id": "PYSEC-1", "fix_versions": ["3.21"]}
PACKAGE = {"name": "idna", "version": "3.20"}
CLEAN, FLAWED, SKIPPED = (
    {"dependencies": [PACKAGE | more]}
    for more in (dict[str, Any](vulns=[]), {"vulns": [FLAW]}, {"skip_reason": "not found"})
)
ANY, NONE = audit.ALLOWED, frozenset({"MIT"})


@pytest.mark.parametrize(
    ("found", "flags", "licences", "status", "printed"),
    [
        (CLEAN, [], ANY, 0, ""),
        (FLAWED, [], ANY, WRONG, "PYSEC-1"),
        (SKIPPED, [], ANY, NOT_ASKED, "ADVISORIES WERE NOT CHECKED"),
        ("no such host", [], ANY, NOT_ASKED, "ADVISORIES WERE NOT CHECKED"),
        ("no such host", ["--or-say-so"], ANY, 0, "ADVISORIES WERE NOT CHECKED"),
        ("no such host", ["--or-say-so"], NONE, WRONG, "ADVISORIES WERE NOT CHECKED"),
    ],
)
def test_audit_ends_as_licences_and_advisories_say(
    found: Any,
    flags: list[str],
    licences: frozenset[str],
    status: int,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A package without an answer does not count as a package without vulnerabilities."""
    monkeypatch.setattr(audit, "advisories", lambda lock: found)
    monkeypatch.setattr(audit, "ALLOWED", licences)
    assert audit.main(flags) == status
    out = capsys.readouterr().out
    for text in ("PYSEC-1", "ADVISORIES WERE NOT CHECKED"):
        assert (text in out) is (text == printed)


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("(MIT OR GPL-2.0-only) AND ISC", True),
        ("GPL-3.0-or-later", False),
        ("not stated", False),
    ],
)
def test_expression_is_allowed_if_a_licence_may_be_chosen(expression: str, fine: bool) -> None:
    assert audit.allowed(expression) is fine


def test_every_package_of_the_locks_is_checked() -> None:
    product, everything = audit.pins(audit.PRODUCT.read_text()), audit.pins(audit.ALL.read_text())
    assert len(everything) == audit.ALL.read_text().count("==") > len(product) > 20
    assert set(product) <= set(everything)
