"""TLS contexts whose files can be reloaded.

Owns: loading certificates, keys and authorities into a context, and loading them again when their files
change. Must never enter: settings, sockets, HTTP.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.loop.files import open_regular
from gateway.security.file_changes import FileChanges

log = logging.getLogger(__name__)

_REASONS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "the file contains no certificate",
    "BAD_DECRYPT": "the password of the key is wrong",
    "BAD_PASSWORD_READ": "the key is encrypted, and no password is given",
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a context; None: there is no such file. Without ``key``, the key is in ``certificate``."""

    certificate: str | None = None
    key: str | None = None
    authorities: str | None = None
    password: str = ""

    @property
    def paths(self) -> Sequence[Path]:
        return [Path(each) for each in (self.certificate, self.key, self.authorities) if each is not None]

    def load(self, context: ssl.SSLContext) -> None:
        """Load all files into ``context``. Raises OSError (SSLError is a subclass)."""
        for path in self.paths:
            with open_regular(path):
                pass  # OpenSSL would block for ever on a named pipe
        if self.authorities is not None:
            context.load_verify_locations(self.authorities)
        if self.certificate is not None:
            # A function, as OpenSSL asks on the terminal for a password that is None.
            context.load_cert_chain(self.certificate, self.key, lambda: self.password)


class ReloadingContext:
    """A context whose files are loaded again when they change. New connections use the new certificates.

    Authorities that are removed from their file stay trusted until the process exits: OpenSSL can add
    authorities to a context, but not remove them.
    """

    def __init__(self, context: ssl.SSLContext, files: TlsFiles) -> None:
        self.context = context
        self._files = files
        self.file_changes = FileChanges(files.paths)
        self._problem = ""

    def refresh(self) -> None:
        """Load the files again; keep what was loaded before while they cannot be used.

        Must be called on the event loop, so that no handshake happens between two files.
        """
        names = ", ".join(map(str, self._files.paths))
        try:
            # A mismatched key would leave the context without any, so a new context is tried first.
            self._files.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._files.load(self.context)
        except OSError as error:
            self.file_changes.retry()
            problem = reason_of(error)
            if problem != self._problem:  # logged once, not at each attempt
                log.warning("%s cannot be used, the previous content stays in use: %s", names, problem)
            self._problem = problem
            return
        if self._problem:
            log.info("%s can be used again", names)
        self._problem = ""


def reason_of(error: OSError) -> str:
    """Return in a few words why a file cannot be used."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    reason = error.reason or "the file contains no certificate and key"
    return _REASONS.get(reason, reason.lower().replace("_", " "))
