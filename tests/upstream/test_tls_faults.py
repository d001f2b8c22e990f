"""Reasons for failed TLS handshakes."""

from __future__ import annotations

import ssl

import pytest

from gateway.upstream.tls_faults import tls_fault


def _error(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL] something")
    error.reason = reason  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("reason", "reason_given"),
    [
        ("WRONG_VERSION_NUMBER", "it does not speak TLS on this port"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "it wants a client certificate, and was shown none"),
        ("SOMETHING_ELSE", "TLS failed: something else"),
        (None, "TLS failed: "),
    ],
)
def test_reason_is_given_in_plain_words(reason: str | None, reason_given: str) -> None:
    assert str(tls_fault(_error(reason))).startswith(reason_given)


def test_rejected_certificate_is_reported_with_its_fault() -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL] long text")
    error.verify_message = "certificate has expired"
    assert tls_fault(error) == "its certificate is not accepted: certificate has expired"


@pytest.mark.parametrize("error", [None, ConnectionRefusedError(), TimeoutError()])
def test_other_errors_are_not_about_tls(error: BaseException | None) -> None:
    assert tls_fault(error) is None
