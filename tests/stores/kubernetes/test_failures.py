"""The failures that replies and ERROR events of the API server mean."""

from __future__ import annotations

import json

import pytest

from gateway.stores.kubernetes.failures import MAX_MESSAGE, ApiRefusal, Expired, error_event, refusal


def body(**members: object) -> bytes:
    return json.dumps({"kind": "Status", **members}).encode()


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 429, 500])
def test_error_that_only_a_person_can_mend_is_slow(status: int) -> None:
    failure = refusal(status, "", body(message="no"))
    assert failure.slow is (status in (302, 400, 403, 404))
    assert isinstance(failure, ApiRefusal) and failure.status == status


def test_message_is_the_servers_on_one_line_and_bounded() -> None:
    assert str(refusal(403, "", body(message="pods is\nforbidden"))).endswith("403: pods is forbidden")
    assert len(str(refusal(403, "", body(message="x" * 9999)))) < MAX_MESSAGE + 50


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"[" * 100_000, b'{"message": 3}', b"\xff"])
def test_error_without_a_message_has_the_phrase_of_its_status(answer: bytes) -> None:
    assert str(refusal(503, "", answer)) == "the API server answered 503: Service Unavailable"
    assert str(refusal(599, "", answer)) == "the API server answered 599: no reason given"


@pytest.mark.parametrize(
    ("header", "details", "wait"),
    [
        ("7", {}, 7),
        ("", {"retryAfterSeconds": 5}, 5),
        ("7", {"retryAfterSeconds": 5}, 7),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, 0),
        ("-1", {}, 0),
        ("9" * 40, {}, 0),
        ("", {"retryAfterSeconds": "soon"}, 0),
    ],
)
def test_retry_time_is_taken_from_header_or_body(header: str, details: dict[str, object], wait: int) -> None:
    assert refusal(429, header, body(details=details)).wait == wait


def test_version_that_is_too_old_or_too_new_has_expired() -> None:
    """410 by status or reason, and a version that the server does not have yet."""
    assert isinstance(refusal(410, "", b""), Expired)
    assert isinstance(error_event({"code": 410, "message": "too old resource version"}), Expired)
    assert isinstance(error_event({"reason": "Expired"}), Expired)
    too_large = {"causes": [{"reason": "ResourceVersionTooLarge"}]}
    assert isinstance(refusal(504, "1", body(reason="Timeout", details=too_large)), Expired)
    assert isinstance(refusal(504, "1", body(reason="Timeout")), ApiRefusal)


@pytest.mark.parametrize("event", [{}, {"code": "x"}, {"code": 500, "message": "new"}, {"details": []}])
def test_error_event_with_any_structure_is_a_failure(event: dict[str, object]) -> None:
    assert isinstance(error_event(event), ApiRefusal)
