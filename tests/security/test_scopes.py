"""The access scope of each path."""

from __future__ import annotations

import pytest

from gateway.security.guard import AccessScope
from gateway.security.scopes import ScopeTable

SCOPES = ScopeTable(
    open_paths=("/", "/live"), inference=("/abort",), inference_trees=("/models",), metrics=("/m",)
)


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/", AccessScope.OPEN),
        ("/live", AccessScope.OPEN),
        ("/live/", AccessScope.CONTROL),
        ("/live/x", AccessScope.CONTROL),
        ("//live", AccessScope.CONTROL),
        ("/LIVE", AccessScope.CONTROL),
        ("", AccessScope.CONTROL),
        ("/abort", AccessScope.INFERENCE),
        ("/abort/x", AccessScope.CONTROL),
        ("/models", AccessScope.INFERENCE),
        ("/models/a/b", AccessScope.INFERENCE),
        ("/modelsx", AccessScope.CONTROL),
        ("/m", AccessScope.METRICS),
        ("/whatever/comes", AccessScope.CONTROL),
    ],
)
def test_scope_of_a_path(path: str, scope: AccessScope) -> None:
    """Exactly the paths that are named; all else is for the admin."""
    assert SCOPES.of(path) is scope
