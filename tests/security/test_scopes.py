"""Which path asks for which key."""

from __future__ import annotations

import pytest

from gateway.security.guard import Realm
from gateway.security.scopes import Realms

REALMS = Realms(
    open_paths=("/", "/live"), inference=("/abort",), inference_trees=("/models",), metrics=("/m",)
)


@pytest.mark.parametrize(
    ("path", "realm"),
    [
        ("/", Realm.OPEN),
        ("/live", Realm.OPEN),
        ("/live/", Realm.CONTROL),
        ("/live/x", Realm.CONTROL),
        ("//live", Realm.CONTROL),
        ("/LIVE", Realm.CONTROL),
        ("", Realm.CONTROL),
        ("/abort", Realm.INFERENCE),
        ("/abort/x", Realm.CONTROL),
        ("/models", Realm.INFERENCE),
        ("/models/a/b", Realm.INFERENCE),
        ("/modelsx", Realm.CONTROL),
        ("/m", Realm.METRICS),
        ("/whatever/comes", Realm.CONTROL),
    ],
)
def test_realm_of_a_path(path: str, realm: Realm) -> None:
    """Exactly the paths that are named; all else is for the admin."""
    assert REALMS.of(path) is realm
