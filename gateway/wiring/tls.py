"""The TLS contexts that the settings describe: for clients, and for workers.

Owns: which settings name which file, and the error that names the setting at fault. Must never enter:
sockets, HTTP.
"""

from __future__ import annotations

import ssl

from gateway.loop.files import open_regular
from gateway.security.tls import ReloadingContext, TlsFiles, reason_of
from gateway.settings import Settings, SettingsError


def server_tls(settings: Settings) -> ReloadingContext | None:
    """Return the context for clients' connections; None: without TLS. Raises SettingsError."""
    if settings.ssl_certfile is None:
        return None
    secret = settings.ssl_keyfile_password
    files = TlsFiles(
        settings.ssl_certfile,
        settings.ssl_keyfile,
        settings.ssl_ca_certs,
        "" if secret is None else secret.get_secret_value(),
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    if files.authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    _load(context, files, settings, ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"))
    return ReloadingContext(context, files)


def worker_tls(settings: Settings) -> ReloadingContext | None:
    """Return the context for connections to https workers; None: the system's default.

    Raises SettingsError.
    """
    files = TlsFiles(settings.worker_client_cert, settings.worker_client_key, settings.worker_ca_file)
    insecure = settings.worker_tls_insecure
    if not files.paths and not insecure:
        return None
    if insecure or files.authorities is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no authority yet
    else:
        context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load(context, files, settings, ("worker_client_cert", "worker_client_key", "worker_ca_file"))
    return ReloadingContext(context, files)


def _load(context: ssl.SSLContext, files: TlsFiles, settings: Settings, names: tuple[str, str, str]) -> None:
    """Load ``files``, which the settings ``names`` give. Raises SettingsError for the one at fault."""
    certificate, key, authorities = names
    for name in names:
        path = getattr(settings, name)
        if path is not None:
            try:
                with open_regular(path):
                    pass
            except OSError as error:
                raise _unusable(settings, name, error) from error
    try:
        TlsFiles(authorities=files.authorities).load(context)
    except OSError as error:
        raise _unusable(settings, authorities, error) from error
    try:
        TlsFiles(files.certificate, files.key, password=files.password).load(context)
    except OSError as error:
        raise _unusable(settings, certificate if files.key is None else key, error) from error


def _unusable(settings: Settings, name: str, error: OSError) -> SettingsError:
    return SettingsError(
        f"{settings.source_of(name)}: {getattr(settings, name)} cannot be used: {reason_of(error)}"
    )
