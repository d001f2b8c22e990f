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


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["DYN_WORKERS", "DYN_HTTP_PROT", "DYN_HTTP_PORT", "OTHER"], "unknown: DYN_HTTP_PROT, DYN_WORKERS"),
        (["DYN_MIGRATION_LIMIT", "DYN_ODD"], "unknown: DYN_ODD; not supported here: DYN_MIGRATION_LIMIT"),
        (["DYN_HTTP_PORT"], None),
    ],
)
def test_variables_that_do_nothing_are_named_in_one_line_those_of_another_frontend_apart(
    names: list[str], line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        monkeypatch.setenv(name, "1")
    assert ignored_variables(KNOWN) == (line and f"ignored environment variables: {line}")
