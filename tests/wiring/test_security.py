"""From settings to a guard, and what is warned of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.security.guard import AccessScope
from gateway.settings import Settings, SettingsError, load_settings
from gateway.wiring.app import create_app
from gateway.wiring.security import guard_of, sources_of, warnings_of

SECRETS = {
    "api_key": "secret-api",
    "admin_api_key": "secret-admin",
    "worker_api_key": "secret-worker",
    "ssl_keyfile_password": "secret-password",
}


def test_file_that_cannot_be_used_is_a_start_up_error_that_names_its_setting(tmp_path: Path) -> None:
    nowhere, empty = tmp_path / "nowhere", tmp_path / "empty"
    empty.touch()
    with pytest.raises(SettingsError, match="--api-key-file: .*nowhere cannot be used: No such file"):
        create_app(load_settings({"api_key_file": str(nowhere)}))
    with pytest.raises(SettingsError, match="--admin-api-key-file: .*contains no key"):
        create_app(load_settings({"admin_api_key_file": str(empty)}))


def test_settings_make_the_guard(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("from-file\n")
    settings = load_settings({"api_key": "given", "api_key_file": str(file), "metrics_open": True})
    guard = guard_of(settings, sources_of(settings), lambda scope: None)
    for key in (b"given", b"from-file"):
        assert guard.admits(AccessScope.CONTROL, [(b"authorization", b"Bearer " + key)])
    assert guard.admits(AccessScope.METRICS, []) and not guard.admits(AccessScope.INFERENCE, [])


@pytest.mark.parametrize(
    ("given", "address", "warned"),
    [
        ({}, "0.0.0.0", True),
        ({}, "::", True),
        ({}, "10.0.0.1", True),
        ({}, "fe80::1%eth0", True),
        ({}, "127.0.0.1", False),
        ({}, "127.9.9.9", False),
        ({}, "::1", False),
        ({"api_key": "k"}, "0.0.0.0", False),
        ({"admin_api_key": "k"}, "0.0.0.0", False),
        ({"admin_api_key_file": "/keys"}, "0.0.0.0", False),
    ],
)
def test_open_control_routes_are_warned_of(given: dict[str, Any], address: str, warned: bool) -> None:
    found = list(warnings_of(Settings(**given), address, 8000))
    assert [("control routes are open" in one and "port 8000" in one) for one in found] == [True] * warned


def test_insecure_workers_are_warned_of_loudly() -> None:
    [found] = warnings_of(Settings(worker_tls_insecure=True), "127.0.0.1", 1)
    assert found.startswith("CERTIFICATES OF WORKERS ARE NOT CHECKED")


def test_secrets_are_in_no_text_of_the_settings() -> None:
    settings = load_settings({"ssl_certfile": "/c", **SECRETS})
    for text in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert "secret-" not in text
