"""Errors of TLS, in words."""

from __future__ import annotations

import ssl

import pytest

from gateway.upstream.tls_faults import tls_fault


def _error(reason: str | None) -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL] something")
    error.reason = reason  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("WRONG_VERSION_NUMBER", "it does not speak TLS on this port"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "it wants a client certificate, and was shown none"),
        ("SOMETHING_ELSE", "TLS failed: something else"),
        (None, "TLS failed: "),
    ],
)
def test_reason_is_told_in_words(reason: str | None, said: str) -> None:
    assert str(tls_fault(_error(reason))).startswith(said)


def test_certificate_that_is_not_accepted_says_why() -> None:
    error = ssl.SSLCertVerificationError(1, "[SSL] long text")
    error.verify_message = "certificate has expired"
    assert tls_fault(error) == "its certificate is not accepted: certificate has expired"


@pytest.mark.parametrize("error", [None, ConnectionRefusedError(), TimeoutError()])
def test_other_failures_are_none_of_tls(error: BaseException | None) -> None:
    assert tls_fault(error) is None
