"""The etcd store that the settings describe.

Owns: defaults of settings, certificates. Must never enter: a call to etcd.
"""

from __future__ import annotations

import ssl

from gateway.settings import Settings, SettingsError
from gateway.stores.etcd.client import EtcdAccess
from gateway.stores.etcd.store import EtcdStore

#: Where etcd listens by default.
DEFAULT_ENDPOINTS = ("http://127.0.0.1:2379",)


def etcd_store(settings: Settings) -> EtcdStore:
    """Return the store; it does not connect yet.

    Raises SettingsError for a certificate that cannot be used.
    """
    return EtcdStore(access_of(settings), settings.etcd_prefix)


def access_of(settings: Settings) -> EtcdAccess:
    """Return endpoints, credentials and TLS context. Raises SettingsError."""
    password = settings.etcd_password
    return EtcdAccess(
        endpoints=settings.etcd_endpoints or DEFAULT_ENDPOINTS,
        user=settings.etcd_user,
        password="" if password is None else password.get_secret_value(),
        tls=_tls(settings),
    )


def _tls(settings: Settings) -> ssl.SSLContext | None:
    authorities, certificate, key = settings.etcd_ca_file, settings.etcd_cert_file, settings.etcd_key_file
    if authorities is None and certificate is None:
        return None
    try:
        tls = ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise _unusable(settings, "etcd_ca_file", error) from error
    if certificate is not None:
        try:
            tls.load_cert_chain(certificate, key, password="")  # with None, OpenSSL asks on the terminal
        except OSError as error:
            raise _unusable(settings, "etcd_key_file" if key else "etcd_cert_file", error) from error
    return tls


def _unusable(settings: Settings, name: str, error: OSError) -> SettingsError:
    return SettingsError(f"{settings.source_of(name)}: cannot be used: {error}")
