"""``make audit`` finds a licence that is not allowed, a known vulnerability, and a missing answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scripts import audit

CLEAN: Mapping[str, Any] = {"dependencies": [{"name": "idna", "version": "3.20", "vulns": []}]}
FLAW = {"id": "PYSEC-1", "fix_versions": ["3.21"]}
FLAWED: Mapping[str, Any] = {"dependencies": [{"name": "idna", "version": "3.20", "vulns": [FLAW]}]}
SKIPPED: Mapping[str, Any] = {"dependencies": [{"name": "idna", "skip_reason": "not found"}]}


def _set_advisories(monkeypatch: pytest.MonkeyPatch, found: Mapping[str, Any] | str) -> None:
    monkeypatch.setattr(audit, "advisories", lambda lock: found)


@pytest.mark.parametrize(
    ("found", "status"),
    [(CLEAN, 0), (FLAWED, audit.WRONG), (SKIPPED, audit.NOT_ASKED), ("no such host", audit.NOT_ASKED)],
    ids=["clean", "flawed", "skipped", "unreachable"],
)
def test_audit_ends_as_the_advisories_say(
    found: Mapping[str, Any] | str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A package without an answer does not count as a package without vulnerabilities."""
    _set_advisories(monkeypatch, found)
    assert audit.main([]) == status
    out = capsys.readouterr().out
    assert ("ADVISORIES WERE NOT CHECKED" in out) is (status == audit.NOT_ASKED)
    assert ("PYSEC-1" in out) is (status == audit.WRONG)


def test_audit_without_an_answer_reports_it_and_still_fails_for_a_licence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _set_advisories(monkeypatch, "no such host")
    assert audit.main(["--or-say-so"]) == 0
    assert "ADVISORIES WERE NOT CHECKED" in capsys.readouterr().out
    monkeypatch.setattr(audit, "ALLOWED", frozenset({"MIT"}))
    assert audit.main(["--or-say-so"]) == audit.WRONG


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
    """Each line with a version; those of the product are among them."""
    product, everything = audit.pins(audit.PRODUCT.read_text()), audit.pins(audit.ALL.read_text())
    assert len(everything) == audit.ALL.read_text().count("==") > len(product) > 20
    assert set(product) <= set(everything)
