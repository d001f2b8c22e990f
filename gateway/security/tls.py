"""TLS on both sides: towards clients, and towards workers.

Owns: the contexts that the settings describe, and reading certificates again when their files change. Must
never enter: sockets, HTTP.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.loop.files import open_regular
from gateway.security.file_changes import FileChanges
from gateway.settings import Settings, SettingsError

log = logging.getLogger(__name__)

_REASONS = {
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in it",
    "BAD_DECRYPT": "the password of the key is wrong",
    "BAD_PASSWORD_READ": "the key is encrypted, and its password is not given",
}


@dataclass(frozen=True, slots=True)
class Files:
    """Where the parts are; a None is a part that is not there. Without ``key``, it is in ``certificate``."""

    certificate: str | None = None
    key: str | None = None
    authorities: str | None = None
    password: str = ""

    @property
    def paths(self) -> Sequence[Path]:
        return [Path(each) for each in (self.certificate, self.key, self.authorities) if each is not None]

    def load(self, context: ssl.SSLContext) -> None:
        """Put all of it into ``context``. Raises OSError, of which SSLError is one."""
        for path in self.paths:
            with open_regular(path):
                pass  # what reads it might wait for a pipe for ever
        if self.authorities is not None:
            context.load_verify_locations(self.authorities)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key, self._told)

    def _told(self) -> str:
        """Asked for an encrypted key; without it the terminal would be."""
        return self.password


class ReloadingContext:
    """A context whose files are read again when they changed: new connections use what they hold then.

    Authorities that are no longer in their file stay trusted until the end of the process: a context can only
    be given more of them.
    """

    def __init__(self, context: ssl.SSLContext, files: Files) -> None:
        self.context = context
        self._files = files
        self.file_changes = FileChanges(files.paths)
        self._complaint = ""

    def refresh(self) -> None:
        """Take what the files hold now; what there was stays while they cannot be used.

        On the event loop only, between two handshakes.
        """
        try:
            # Elsewhere first: a key that does not fit would leave the live context without any.
            self._files.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._files.load(self.context)
        except OSError as error:
            return self._complain(reason_of(error))
        if self._complaint:
            log.info("%s can be used again", self._named())
        self._complaint = ""

    def _complain(self, why: str) -> None:
        self.file_changes.again()
        if why != self._complaint:  # once, not at each look
            log.warning("%s cannot be used, what was read before stays: %s", self._named(), why)
        self._complaint = why

    def _named(self) -> str:
        return ", ".join(map(str, self._files.paths))


def server_tls(settings: Settings) -> ReloadingContext | None:
    """For connections of clients; None: they come in the clear. Raises SettingsError."""
    if settings.ssl_certfile is None:
        return None
    secret = settings.ssl_keyfile_password
    files = Files(
        settings.ssl_certfile,
        settings.ssl_keyfile,
        settings.ssl_ca_certs,
        "" if secret is None else secret.get_secret_value(),
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    if files.authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    _fill(context, files, settings, ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"))
    return ReloadingContext(context, files)


def worker_tls(settings: Settings) -> ReloadingContext | None:
    """For connections to https workers; None: as the system's authorities say. Raises SettingsError."""
    files = Files(settings.worker_client_cert, settings.worker_client_key, settings.worker_ca_file)
    insecure = settings.worker_tls_insecure
    if not files.paths and not insecure:
        return None
    if insecure or files.authorities is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody yet
    else:
        context = ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _fill(context, files, settings, ("worker_client_cert", "worker_client_key", "worker_ca_file"))
    return ReloadingContext(context, files)


def reason_of(error: OSError) -> str:
    """What is wrong with a file, in a few words."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    reason = error.reason or "no certificate and key in it"
    return _REASONS.get(reason, reason.lower().replace("_", " "))


def _fill(context: ssl.SSLContext, files: Files, settings: Settings, names: tuple[str, str, str]) -> None:
    """``names`` are the settings behind the parts of ``files``."""
    certificate, key, authorities = names
    for name in names:
        path = getattr(settings, name)
        if path is not None:
            _look(settings, name, path)
    try:
        Files(authorities=files.authorities).load(context)
    except OSError as error:
        raise _unusable(settings, authorities, error) from error
    try:
        Files(files.certificate, files.key, password=files.password).load(context)
    except OSError as error:
        raise _unusable(settings, certificate if files.key is None else key, error) from error


def _look(settings: Settings, name: str, path: str) -> None:
    try:
        with open_regular(path):
            pass
    except OSError as error:
        raise _unusable(settings, name, error) from error


def _unusable(settings: Settings, name: str, error: OSError) -> SettingsError:
    return SettingsError(
        f"{settings.source_of(name)}: {getattr(settings, name)} cannot be used: {reason_of(error)}"
    )
