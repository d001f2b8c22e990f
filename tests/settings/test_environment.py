"""The environment: what does nothing in it is said in one line."""

from __future__ import annotations

import pytest

from gateway.settings.environment import ignored_variables, variables

KNOWN = {"DYN_HTTP_PORT"}


def test_environment_is_read_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_ODD", "3")
    assert variables()["DYN_ODD"] == "3"
    monkeypatch.delenv("DYN_ODD")
    assert "DYN_ODD" not in variables()


def test_unknown_variables_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DYN_WORKERS", "DYN_HTTP_PROT", "DYN_HTTP_PORT", "OTHER"):
        monkeypatch.setenv(name, "1")
    assert ignored_variables(KNOWN) == "ignored environment variables: unknown: DYN_HTTP_PROT, DYN_WORKERS"


def test_variable_of_another_frontend_is_listed_apart_from_an_unknown_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DYN_MIGRATION_LIMIT", "3")
    monkeypatch.setenv("DYN_ODD", "3")
    assert ignored_variables(KNOWN) == (
        "ignored environment variables: unknown: DYN_ODD; not supported here: DYN_MIGRATION_LIMIT"
    )


def test_no_line_when_every_variable_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_HTTP_PORT", "1")
    assert ignored_variables(KNOWN) is None
