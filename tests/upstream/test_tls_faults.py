"""Reasons for failed TLS handshakes. (Real ones: tests/security/test_tls_workers.py)"""

from __future__ import annotations

import ssl

import pytest

from gateway.upstream.tls_faults import tls_fault


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "it wants a client certificate, and was shown none"),
        ("SOMETHING_ELSE", "TLS failed: something else"),
        (None, "TLS failed: "),
    ],
)
def test_reason_is_given_in_plain_words(reason: str | None, given: str) -> None:
    error = ssl.SSLError(1, "[SSL] something")
    error.reason = reason  # type: ignore[assignment]
    assert str(tls_fault(error)).startswith(given)
    assert tls_fault(TimeoutError()) is None
