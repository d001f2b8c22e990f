"""The etcd that the settings describe.

Owns: what settings mean where they are not given, certificates. Must never enter: a call.
"""

from __future__ import annotations

import ssl

from gateway.settings import Settings, SettingsError
from gateway.stores.etcd.client import EtcdAccess
from gateway.stores.etcd.store import EtcdStore

#: Where an etcd listens that nothing was said to.
DEFAULT_ENDPOINTS = ("http://127.0.0.1:2379",)


def etcd_store(settings: Settings) -> EtcdStore:
    """Nothing is reached yet. Raises SettingsError for a certificate that cannot be used."""
    return EtcdStore(access_of(settings), settings.etcd_prefix)


def access_of(settings: Settings) -> EtcdAccess:
    """Where, as whom and in what trust. Raises SettingsError."""
    password = settings.etcd_password
    return EtcdAccess(
        endpoints=settings.etcd_endpoints or DEFAULT_ENDPOINTS,
        user=settings.etcd_user,
        password="" if password is None else password.get_secret_value(),
        tls=_tls(settings),
    )


def _tls(settings: Settings) -> ssl.SSLContext | None:
    """None: nothing was said of it."""
    authorities, certificate, key = settings.etcd_ca_file, settings.etcd_cert_file, settings.etcd_key_file
    if authorities is None and certificate is None:
        return None
    try:
        tls = ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise _unusable(settings, "etcd_ca_file", error) from error
    if certificate is not None:
        try:
            tls.load_cert_chain(certificate, key, password="")  # else it is asked for on a terminal
        except OSError as error:
            raise _unusable(settings, "etcd_key_file" if key else "etcd_cert_file", error) from error
    return tls


def _unusable(settings: Settings, name: str, error: OSError) -> SettingsError:
    return SettingsError(f"{settings.source_of(name)}: cannot be used: {error}")
