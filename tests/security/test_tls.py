"""Contexts from settings, and files that cannot be used."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from gateway.security.tls import ReloadingContext
from gateway.settings import SettingsError, load_settings
from gateway.wiring.tls import server_tls, worker_tls
from tests.security.certificates import Authority


def _server(certificate: str, key: str) -> ReloadingContext:
    tls = server_tls(load_settings({"ssl_certfile": certificate, "ssl_keyfile": key}))
    assert tls is not None
    return tls


def test_contexts_speak_1_2_or_newer_and_trust_only_the_given_authorities(authority: Authority) -> None:
    """Without settings there are none."""
    assert server_tls(load_settings({})) is None and worker_tls(load_settings({})) is None
    ours = _server(*authority.files())
    theirs = worker_tls(load_settings({"worker_ca_file": str(authority.file)}))
    assert theirs is not None
    for tls in (ours, theirs):
        assert tls.context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert ours.context.verify_mode is ssl.CERT_NONE
    assert theirs.context.verify_mode is ssl.CERT_REQUIRED and theirs.context.check_hostname
    assert len(theirs.context.get_ca_certs()) == 1


def test_key_may_be_in_the_file_of_its_certificate(authority: Authority, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(Path(path).read_bytes() for path in authority.files()))
    assert server_tls(load_settings({"ssl_certfile": str(both)})) is not None


def _encrypted(key: str, password: bytes) -> None:
    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    form = serialization.PrivateFormat.PKCS8
    locked = serialization.BestAvailableEncryption(password)
    Path(key).write_bytes(loaded.private_bytes(serialization.Encoding.PEM, form, locked))


def test_encrypted_key_takes_its_password(authority: Authority) -> None:
    """And a wrong or missing one is an error, never a question at the terminal."""
    certificate, key = authority.files()
    _encrypted(key, b"open sesame")
    files = {"ssl_certfile": certificate, "ssl_keyfile": key}
    assert server_tls(load_settings({**files, "ssl_keyfile_password": "open sesame"})) is not None
    for given in ({}, {"ssl_keyfile_password": "wrong"}):
        with pytest.raises(SettingsError, match="--ssl-keyfile: .* cannot be used") as failure:
            server_tls(load_settings(files | given))
        assert "wrong" not in str(failure.value).replace("the password of the key is wrong", "")


@pytest.mark.parametrize(
    "name", ["ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "worker_ca_file", "worker_client_cert"]
)
@pytest.mark.parametrize("content", [None, "", "no certificate"], ids=["missing", "empty", "nonsense"])
def test_file_that_cannot_be_used_is_named(
    name: str, content: str | None, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.files()
    given = {"ssl_certfile": certificate, "ssl_keyfile": key} if name.startswith("ssl") else {}
    bad = tmp_path / "bad"
    if content is not None:
        bad.write_text(content)
    settings = load_settings({**given, name: str(bad)})
    flags = f"--{name.replace('_', '-')}"
    if name == "ssl_certfile" and content is not None:
        flags = "--ssl-(certfile|keyfile)"  # the two are read together
    with pytest.raises(SettingsError, match=f"{flags}: .* cannot be used: .+"):
        server_tls(settings)
        worker_tls(settings)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ssl_keyfile": "/k"}, "DYN_SSL_KEYFILE: needs DYN_SSL_CERTFILE"),
        ({"ssl_ca_certs": "/k"}, "DYN_SSL_CA_CERTS: needs DYN_SSL_CERTFILE"),
        ({"ssl_keyfile_password": "k"}, "DYN_SSL_KEYFILE_PASSWORD: needs DYN_SSL_CERTFILE"),
        ({"worker_client_key": "/k"}, "DYN_WORKER_CLIENT_KEY: needs DYN_WORKER_CLIENT_CERT"),
        ({"worker_tls_insecure": True, "worker_ca_file": "/k"}, "only one of the two can be set"),
    ],
)
def test_half_of_a_pair_is_an_error(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load_settings(given)


def test_files_that_do_not_fit_leave_the_context_as_it_was(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new certificate whose key is not there yet is logged once, and used when the key is there."""
    caplog.set_level("INFO")
    certificate, key = authority.files()
    tls = _server(certificate, key)
    other, other_key = authority.files(stem="other")
    Path(certificate).write_bytes(Path(other).read_bytes())
    for _ in range(2):
        assert tls.file_changes.changed()
        tls.refresh()
    problem = "the key does not belong to the certificate"
    assert caplog.text.count(problem) == 1
    with pytest.raises(SettingsError, match=f"--ssl-keyfile: .*{problem}"):
        _server(certificate, key)
    Path(key).write_bytes(Path(other_key).read_bytes())
    assert tls.file_changes.changed()
    tls.refresh()
    assert "can be used again" in caplog.text


@pytest.mark.parametrize("part", [0, 1], ids=["certificate", "key"])
def test_named_pipe_in_place_of_a_file_does_not_block_the_event_loop(
    part: int, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start it is an error."""
    files = authority.files()
    tls = _server(*files)
    Path(files[part]).unlink()
    os.mkfifo(files[part])
    tls.refresh()
    assert "not a regular file" in caplog.text
    with pytest.raises(SettingsError, match="not a regular file"):
        _server(*files)
