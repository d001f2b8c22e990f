"""Credentials: read again each time, and contained in no message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trustme

from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.failures import ApiServerUnreachable


@pytest.fixture
def files(tmp_path: Path) -> Path:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("hunter2\n")
    return tmp_path


def test_token_is_read_again_each_time(files: Path) -> None:
    access = ApiServerAccess("https://a", files / "token", files / "ca.crt")
    assert access.credentials()[1] == "hunter2"
    (files / "next").write_text("hunter3")
    os.replace(files / "next", files / "token")
    assert access.credentials()[1] == "hunter3"


def test_only_authorities_of_the_file_are_trusted_and_http_needs_none(files: Path) -> None:
    trust, _ = ApiServerAccess("https://a", None, files / "ca.crt").credentials()
    assert trust is not None and trust.check_hostname
    assert len(trust.get_ca_certs()) == 1
    assert ApiServerAccess("http://127.0.0.1:8001").credentials() == (None, None)


@pytest.mark.parametrize("content", [None, b"", b"hunter2 words", b"hunter2\xff", b"hunter2\nX-Evil: 1"])
def test_invalid_token_is_reported_without_it(files: Path, content: bytes | None) -> None:
    token = files / "bad"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(ApiServerUnreachable, match=f"token file {token}") as caught:
        ApiServerAccess("http://a", token).credentials()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_file_without_certificates_is_reported(files: Path) -> None:
    (files / "empty").touch()
    for bad in ("missing", "empty", "token"):
        with pytest.raises(ApiServerUnreachable, match=f"CA file {files / bad} cannot be used"):
            ApiServerAccess("https://a", files / "token", files / bad).credentials()
