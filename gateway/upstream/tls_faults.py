"""The reasons for a failed TLS handshake with a worker, in plain words for an operator.

Owns: reading the errors of the ssl module. Must never enter: sockets, what follows for a worker.
"""

from __future__ import annotations

import ssl

_REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port",
    "HTTP_REQUEST": "it does not speak TLS on this port",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client certificate, and was shown none",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refused the handshake; it may want a client certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the client certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that the client certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refused the client certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refused the client certificate",
    "UNSUPPORTED_PROTOCOL": "no version of TLS suits both sides",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no version of TLS suits both sides",
}


def tls_fault(error: BaseException | None) -> str | None:
    """Return the reason if ``error`` is about TLS; None if it is not."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _REASONS.get(reason, f"TLS failed: {reason.lower().replace('_', ' ') or error}")
    return None
