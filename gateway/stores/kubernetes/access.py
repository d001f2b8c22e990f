"""The URL and credentials of the API server.

Owns: reading the token and the CA certificates from their files, which are replaced while the gateway runs.
Must never enter: HTTP. No text that leaves this module contains a token.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from gateway.loop.files import open_regular
from gateway.stores.kubernetes.failures import ApiServerUnreachable

#: The folder of a pod's service account.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ApiServerAccess:
    """The URL of the API server, and the files of its credentials.

    Without ``ca_file`` the system's CAs count.
    """

    server: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def credentials(self) -> tuple[ssl.SSLContext | None, str | None]:
        """Return the TLS context for https, and the token.

        It reads the files, so it may block. Raises ApiServerUnreachable.
        """
        return self._tls(), self._token()

    def _tls(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        try:
            if self.ca_file is not None:
                with open_regular(self.ca_file):
                    pass  # OpenSSL would block for ever on a named pipe
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # SSLError is a subclass
            raise ApiServerUnreachable(f"the CA file {self.ca_file} cannot be used: {_why(error)}") from None

    def _token(self) -> str | None:
        if self.token_file is None:
            return None
        try:
            with open_regular(self.token_file) as file:
                token = file.read().strip()
        except OSError as error:
            raise ApiServerUnreachable(
                f"the token file {self.token_file} cannot be read: {_why(error)}"
            ) from None
        if re.fullmatch(rb"[!-~]+", token) is None:
            raise ApiServerUnreachable(f"the token file {self.token_file} contains no token")
        return token.decode("ascii")


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__


def account_namespace(account: Path = ACCOUNT) -> str:
    """Return the namespace that the gateway runs in; "default" outside of a cluster."""
    try:
        return (account / "namespace").read_text().strip() or "default"
    except (OSError, UnicodeError):
        return "default"
