"""Certificates for tests: an authority, and what it issues."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


class Authority:
    """A certificate authority, which writes its certificates to ``folder``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def files(self, *names: str, stem: str = "server", expired: bool = False) -> tuple[str, str]:
        """Issue a certificate for ``names`` (127.0.0.1 by default); return the files of it and of its key."""
        ended = datetime.now(UTC) - timedelta(days=1) if expired else None
        issued = self._ca.issue_cert(*(names or ("127.0.0.1",)), not_after=ended)
        certificate, key = self._folder / f"{stem}.crt", self._folder / f"{stem}.key"
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return str(certificate), str(key)

    def server(self, *names: str, expired: bool = False, asks: bool = False) -> ssl.SSLContext:
        """Return a server context for ``names``; ``asks``: clients need a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.files(*names, stem="peer", expired=expired))
        if asks:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.file)
        return context

    def client(self, *, shows: bool = False) -> ssl.SSLContext:
        """Return a client context that trusts this authority only; ``shows``: it has a certificate of it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.file)
        if shows:
            context.load_cert_chain(*self.files("client.test", stem="client"))
        return context
