"""Settings: workers in a file or in etcd.

Owns: the path of the file, and the access to etcd. Must never enter: which store is used.
"""

from __future__ import annotations

from typing import Self

from pydantic import field_validator, model_validator

from gateway.settings.fields import File, Password, Section, Urls, is_path, server_url, setting


class Stores(Section):
    """Workers in a file or in etcd."""

    discovery_file: File = setting(
        "DYN_DISCOVERY_FILE",
        None,
        "File with the list of workers, for --discovery-backend file",
        min_length=1,
    )
    etcd_endpoints: Urls = setting(
        "DYN_ETCD_ENDPOINTS",
        (),
        "URLs of the members of the etcd cluster; repeat the flag or separate by commas; unset: "
        "http://127.0.0.1:2379",
    )
    etcd_prefix: str = setting(
        "DYN_ETCD_PREFIX",
        "/tito-gateway",
        "Prefix of the keys in etcd; gateways of one fleet share it, other fleets need another one",
    )
    etcd_user: str | None = setting("DYN_ETCD_USER", None, "User name for etcd", min_length=1)
    etcd_password: Password = setting("DYN_ETCD_PASSWORD", None, "Password of that user")
    etcd_ca_file: File = setting(
        "DYN_ETCD_CA_FILE",
        None,
        "File with the certificate authorities for etcd; unset: those of the system",
        min_length=1,
    )
    etcd_cert_file: File = setting(
        "DYN_ETCD_CERT_FILE", None, "File with the certificate that the gateway sends to etcd", min_length=1
    )
    etcd_key_file: File = setting(
        "DYN_ETCD_KEY_FILE",
        None,
        "File with the private key of that certificate; unset: it is in the certificate file",
        min_length=1,
    )

    @field_validator("etcd_endpoints")
    @classmethod
    def _are_servers(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(server_url(url) for url in urls)

    @field_validator("etcd_prefix")
    @classmethod
    def _is_prefix(cls, prefix: str) -> str:
        if not is_path(prefix.rstrip("/")):
            raise ValueError(f"{prefix!r} must be a path such as /tito-gateway")
        return prefix

    @model_validator(mode="after")
    def _login_is_complete(self) -> Self:
        if (self.etcd_user is None) is not (self.etcd_password is None):
            raise ValueError("DYN_ETCD_USER, DYN_ETCD_PASSWORD: one needs the other")
        if self.etcd_key_file is not None and self.etcd_cert_file is None:
            raise ValueError("DYN_ETCD_KEY_FILE: needs DYN_ETCD_CERT_FILE")
        return self
