"""Settings: keys and TLS.

Owns: the keys of clients, and the certificates on both sides. Must never enter: the text of a key in a
message.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from gateway.settings.fields import File, Key, Password, Section, setting


class Keys(Section):
    """Keys and TLS."""

    api_key: Key = setting(
        "DYN_API_KEY",
        None,
        "Key that clients must send to inference routes, as a bearer token or as X-API-Key; if neither this "
        "nor the file is set, no key is required",
    )
    api_key_file: File = setting(
        "DYN_API_KEY_FILE",
        None,
        "File with such keys, one per line, # for comments; read again when it changes",
        min_length=1,
    )
    admin_api_key: Key = setting(
        "DYN_ADMIN_API_KEY",
        None,
        "Key that is valid for all routes and required for control routes; if neither this nor "
        "the file is set, any API key is valid for them",
    )
    admin_api_key_file: File = setting(
        "DYN_ADMIN_API_KEY_FILE",
        None,
        "File with such keys, in the same format; read again when it changes",
        min_length=1,
    )
    metrics_open: bool = setting(
        "DYN_METRICS_OPEN",
        False,
        "Require no key for the metrics; otherwise any key is required, if there is one",
    )
    ssl_certfile: File = setting(
        "DYN_SSL_CERTFILE",
        None,
        "File with the gateway's certificate and its intermediate certificates: clients connect by https",
        min_length=1,
    )
    ssl_keyfile: File = setting(
        "DYN_SSL_KEYFILE",
        None,
        "File with the private key of that certificate; unset: it is in the certificate file",
        min_length=1,
    )
    ssl_keyfile_password: Password = setting(
        "DYN_SSL_KEYFILE_PASSWORD", None, "Password of that private key, if it is encrypted"
    )
    ssl_ca_certs: File = setting(
        "DYN_SSL_CA_CERTS",
        None,
        "File with the certificate authorities for clients: a client must send a certificate signed "
        "by one of them",
        min_length=1,
    )
    worker_ca_file: File = setting(
        "DYN_WORKER_CA_FILE",
        None,
        "File with the certificate authorities for https workers; unset: those of the system",
        min_length=1,
    )
    worker_client_cert: File = setting(
        "DYN_WORKER_CLIENT_CERT",
        None,
        "File with the certificate that the gateway sends to https workers that request one",
        min_length=1,
    )
    worker_client_key: File = setting(
        "DYN_WORKER_CLIENT_KEY",
        None,
        "File with the private key of that certificate, not encrypted; unset: it is in the certificate file",
        min_length=1,
    )
    worker_tls_insecure: bool = setting(
        "DYN_WORKER_TLS_INSECURE",
        False,
        "Do not verify the certificates of https workers: for experiments only",
    )

    @model_validator(mode="after")
    def _certificates_are_complete(self) -> Self:
        for name, needed in (
            ("ssl_keyfile", "ssl_certfile"),
            ("ssl_keyfile_password", "ssl_certfile"),
            ("ssl_ca_certs", "ssl_certfile"),
            ("worker_client_key", "worker_client_cert"),
        ):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ValueError(f"DYN_{name.upper()}: needs DYN_{needed.upper()}")
        if self.worker_tls_insecure and self.worker_ca_file is not None:
            raise ValueError("DYN_WORKER_TLS_INSECURE, DYN_WORKER_CA_FILE: only one of the two can be set")
        return self
