"""Settings: keys and TLS.

Owns: the keys clients need, and the certificates on both sides. Must never enter: a key's text in a message.
"""

from __future__ import annotations

from typing import Self

from pydantic import SecretStr, model_validator

from gateway.settings.fields import Key, Section, setting


class Keys(Section):
    """Keys and TLS."""

    api_key: Key = setting(
        "DYN_API_KEY",
        None,
        "Key that clients must send, as a bearer token, to inference routes; unset, with no file: none",
    )
    api_key_file: str | None = setting(
        "DYN_API_KEY_FILE",
        None,
        "File with such keys, one a line, # for comments; read again when it changes",
        min_length=1,
    )
    admin_api_key: Key = setting(
        "DYN_ADMIN_API_KEY",
        None,
        "Key that opens all routes and must be sent to control routes; unset, with no file: an API key does",
    )
    admin_api_key_file: str | None = setting(
        "DYN_ADMIN_API_KEY_FILE",
        None,
        "File with such keys, in the same form, read again as well",
        min_length=1,
    )
    metrics_open: bool = setting(
        "DYN_METRICS_OPEN", False, "Ask for no key at the metrics; else any key is needed, if there is one"
    )
    ssl_certfile: str | None = setting(
        "DYN_SSL_CERTFILE",
        None,
        "File with the gateway's certificate and those between it and its authority: clients come by https",
        min_length=1,
    )
    ssl_keyfile: str | None = setting(
        "DYN_SSL_KEYFILE",
        None,
        "File with the key of that certificate; unset: it is in the file of the certificate",
        min_length=1,
    )
    ssl_keyfile_password: SecretStr | None = setting(
        "DYN_SSL_KEYFILE_PASSWORD", None, "Password of that key, if it is encrypted"
    )
    ssl_ca_certs: str | None = setting(
        "DYN_SSL_CA_CERTS",
        None,
        "File with the authorities by which clients are trusted: each must show a certificate of theirs",
        min_length=1,
    )
    worker_ca_file: str | None = setting(
        "DYN_WORKER_CA_FILE",
        None,
        "File with the certificates that https workers are trusted by; unset: those of the system",
        min_length=1,
    )
    worker_client_cert: str | None = setting(
        "DYN_WORKER_CLIENT_CERT",
        None,
        "File with the certificate that is shown to https workers that ask for one",
        min_length=1,
    )
    worker_client_key: str | None = setting(
        "DYN_WORKER_CLIENT_KEY",
        None,
        "File with the key of that certificate, not encrypted; unset: it is in the file of the certificate",
        min_length=1,
    )
    worker_tls_insecure: bool = setting(
        "DYN_WORKER_TLS_INSECURE",
        False,
        "Take any certificate of an https worker, whoever it is: for experiments only",
    )

    @model_validator(mode="after")
    def _certificates_are_whole(self) -> Self:
        for name, needed in (
            ("ssl_keyfile", "ssl_certfile"),
            ("ssl_keyfile_password", "ssl_certfile"),
            ("ssl_ca_certs", "ssl_certfile"),
            ("worker_client_key", "worker_client_cert"),
        ):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ValueError(f"DYN_{name.upper()}: needs DYN_{needed.upper()}")
        if self.worker_tls_insecure and self.worker_ca_file is not None:
            raise ValueError("DYN_WORKER_TLS_INSECURE, DYN_WORKER_CA_FILE: one makes the other pointless")
        return self
