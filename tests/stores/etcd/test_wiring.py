"""The etcd store of the settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from gateway.settings import SettingsError, load_settings
from gateway.stores.etcd.store import EtcdStore
from gateway.wiring.etcd_store import DEFAULT_ENDPOINTS, access_of, etcd_store
from gateway.wiring.stores import STORES


def test_endpoints_and_login_of_the_settings() -> None:
    """The default is etcd on this host."""
    access = access_of(load_settings())
    assert (access.endpoints, access.user, access.tls) == (DEFAULT_ENDPOINTS, None, None)
    assert isinstance(STORES["etcd"](load_settings({"discovery_backend": "etcd"})), EtcdStore)
    given = {"etcd_endpoints": "https://a:1, https://b:2", "etcd_user": "u", "etcd_password": "s3cret"}
    access = access_of(load_settings(given))
    assert (access.endpoints, access.user, access.password) == (("https://a:1", "https://b:2"), "u", "s3cret")
    assert "s3cret" not in repr(access)


def test_certificates_are_read_at_the_start_and_a_bad_file_is_named(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = ca.issue_cert("client")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    (tmp_path / "nonsense.pem").write_text("nonsense")
    files = {"etcd_ca_file": str(tmp_path / "ca.pem"), "etcd_cert_file": str(tmp_path / "both.pem")}
    tls = access_of(load_settings(files)).tls
    assert tls is not None and tls.verify_mode is ssl.CERT_REQUIRED
    assert len(tls.get_ca_certs()) == 1
    for name in ("etcd_ca_file", "etcd_cert_file", "etcd_key_file"):
        given = {"etcd_cert_file": str(tmp_path / "cert.pem")} if name == "etcd_key_file" else {}
        for bad in ("missing.pem", "nonsense.pem"):
            with pytest.raises(SettingsError, match=f"--{name.replace('_', '-')}: cannot be used"):
                etcd_store(load_settings({**given, name: str(tmp_path / bad)}))
