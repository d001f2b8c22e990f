"""How the API server is reached, and as whom.

Owns: its address, and reading token and certificates from their files, where both are replaced while the
gateway runs. Must never enter: HTTP. A token is in no text that leaves this module but its own return value.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from gateway.loop.files import open_regular
from gateway.stores.kubernetes.failures import Unreachable

#: Where Kubernetes puts the files of a pod's service account.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ApiServerAccess:
    """``server`` is the API server's URL. Without ``ca_file`` the system's authorities are trusted."""

    server: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def credentials(self) -> tuple[ssl.SSLContext | None, str | None]:
        """What the files hold now: the trust for https, and the token. Reads files. Raises Unreachable."""
        return self._trust(), self._token()

    def _trust(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        try:
            if self.ca_file is not None:
                with open_regular(self.ca_file):
                    pass  # what reads it might wait for a pipe for ever
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # an SSLError is one too
            raise Unreachable(f"the CA file {self.ca_file} cannot be used: {_why(error)}") from None

    def _token(self) -> str | None:
        if self.token_file is None:
            return None
        try:
            with open_regular(self.token_file) as file:
                token = file.read().strip()
        except OSError as error:
            raise Unreachable(f"the token file {self.token_file} cannot be read: {_why(error)}") from None
        if re.fullmatch(rb"[!-~]+", token) is None:
            raise Unreachable(f"the token file {self.token_file} holds no token")
        return token.decode("ascii")


def _why(error: OSError) -> str:
    return error.strerror or type(error).__name__


def account_namespace(account: Path = ACCOUNT) -> str:
    """The namespace the gateway runs in; "default" outside of a cluster."""
    try:
        return (account / "namespace").read_text().strip() or "default"
    except (OSError, UnicodeError):
        return "default"
