"""The taxonomy: every kind has its code, its status, its culprit and its label."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.errors import GatewayError, InvalidRequest, Source, error_type_of

#: name -> code, status, source, error_type, retry_after.
TAXONOMY = {
    "MetadataTooLarge": ("metadata_too_large", 431, Source.DOWNSTREAM, "validation", None),
    "PoisonedRequest": ("poisoned_request", 422, Source.DOWNSTREAM, "validation", None),
    "GatewayError": ("internal", 500, Source.GATEWAY, "internal", None),
    "InvalidRequest": ("invalid_request", 400, Source.DOWNSTREAM, "validation", None),
    "Unauthorized": ("unauthorized", 401, Source.DOWNSTREAM, "validation", None),
    "MethodNotAllowed": ("method_not_allowed", 405, Source.DOWNSTREAM, "validation", None),
    "RequestTooLarge": ("request_too_large", 413, Source.DOWNSTREAM, "validation", None),
    "UnknownModel": ("unknown_model", 404, Source.DOWNSTREAM, "not_found", None),
    "BodyTimeout": ("body_timeout", 408, Source.DOWNSTREAM, "validation", None),
    "Overloaded": ("overloaded", 503, Source.GATEWAY, "overload", 1),
    "UpstreamTimeout": ("upstream_timeout", 504, Source.UPSTREAM, "response_timeout", None),
    "WaitTimeout": ("wait_timeout", 504, Source.GATEWAY, "response_timeout", None),
    "ReplyUnread": ("reply_unread", 408, Source.DOWNSTREAM, "response_timeout", None),
    "OutOfSockets": ("out_of_sockets", 503, Source.GATEWAY, "overload", 1),
    "NoWorker": ("no_worker", 503, Source.GATEWAY, "unavailable", 1),
    "Draining": ("draining", 503, Source.GATEWAY, "unavailable", 1),
    "ConnectFailed": ("connect_failed", 502, Source.UPSTREAM, "unavailable", None),
    "UpstreamIncomplete": ("upstream_incomplete", 502, Source.UPSTREAM, "internal", None),
    "NotReceived": ("not_received", 502, Source.UPSTREAM, "internal", None),
    "UpstreamMalformed": ("upstream_malformed", 502, Source.UPSTREAM, "internal", None),
    "ProcessDied": ("process_died", 500, Source.GATEWAY, "internal", None),
    "Cancelled": ("cancelled", 499, Source.DOWNSTREAM, "cancelled", None),
    "Aborted": ("aborted", 499, Source.DOWNSTREAM, "cancelled", None),
}


def kinds() -> dict[str, type[GatewayError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, GatewayError)
    }


def test_taxonomy_is_complete() -> None:
    """No kind is missing from the table, and none is in it twice under one code."""
    assert set(kinds()) == set(TAXONOMY)
    assert len({kind.code for kind in kinds().values()}) == len(TAXONOMY)


@pytest.mark.parametrize("name", TAXONOMY)
def test_kind_of_failure(name: str) -> None:
    """Each kind keeps its message and cause, and says what the table says."""
    cause = OSError("why")
    error = kinds()[name]("what happened", cause=cause)
    assert (error.code, error.status, error.source, error.error_type, error.retry_after) == TAXONOMY[name]
    assert (error.message, error.cause, str(error)) == ("what happened", cause, "what happened")


@pytest.mark.parametrize("name", TAXONOMY)
def test_passing_failure_is_no_refusal(name: str) -> None:
    """What may be tried again is never a 4xx that clients take for final, and says when to come back."""
    kind = kinds()[name]
    if kind.retry_after is not None:
        assert kind.status == 503
    if kind.source is not Source.DOWNSTREAM:
        assert kind.status >= 500


def test_field_at_fault_is_named() -> None:
    """A bad request can point at its field."""
    assert InvalidRequest("bad", param="rid").param == "rid"
    assert InvalidRequest("bad").param is None


@pytest.mark.parametrize(
    ("status", "label"),
    [
        (200, ""),
        (204, ""),
        (302, ""),
        (399, ""),
        (400, "validation"),
        (404, "not_found"),
        (413, "validation"),
        (422, "validation"),
        (429, "overload"),
        (499, "cancelled"),
        (500, "internal"),
        (501, "not_implemented"),
        (502, "internal"),
        (503, "unavailable"),
        (504, "response_timeout"),
        (529, "overload"),
        (599, "internal"),
    ],
)
def test_label_of_an_engines_status(status: int, label: str) -> None:
    """Every status an engine may send has a label, and a success has none."""
    assert error_type_of(status) == label
