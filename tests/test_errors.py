"""The taxonomy: every kind has its code, its status, its culprit and its label."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.errors import GatewayError, Source, error_type_of

#: name -> code, status, source, error_type, retry_after.
TAXONOMY = {
    "MetadataTooLarge": ("metadata_too_large", 431, Source.DOWNSTREAM, "validation", None),
    "PoisonedRequest": ("poisoned_request", 422, Source.DOWNSTREAM, "validation", None),
    "GatewayError": ("internal", 500, Source.GATEWAY, "internal", None),
    "InvalidRequest": ("invalid_request", 400, Source.DOWNSTREAM, "validation", None),
    "Unauthorized": ("unauthorized", 401, Source.DOWNSTREAM, "validation", None),
    "MethodNotAllowed": ("method_not_allowed", 405, Source.DOWNSTREAM, "validation", None),
    "RequestTooLarge": ("request_too_large", 413, Source.DOWNSTREAM, "validation", None),
    "ContextLength": ("context_length", 400, Source.DOWNSTREAM, "context_length", None),
    "UnknownModel": ("unknown_model", 404, Source.DOWNSTREAM, "not_found", None),
    "BodyTimeout": ("body_timeout", 408, Source.DOWNSTREAM, "validation", None),
    "OutOfMemory": ("out_of_memory", 503, Source.GATEWAY, "unavailable", 1),
    "LoopDetected": ("loop_detected", 508, Source.GATEWAY, "internal", None),
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


KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, GatewayError)
}


def test_taxonomy_is_complete() -> None:
    """No kind is missing from the table, and none is in it twice under one code."""
    assert KINDS.keys() == TAXONOMY.keys()
    assert len({kind.code for kind in KINDS.values()}) == len(TAXONOMY)


@pytest.mark.parametrize("name", TAXONOMY)
def test_kind_of_failure(name: str) -> None:
    """Each kind keeps its message and cause, and says what the table says."""
    cause = OSError("why")
    error = KINDS[name]("what happened", cause=cause)
    assert (error.code, error.status, error.source, error.error_type, error.retry_after) == TAXONOMY[name]
    assert (error.message, error.cause, str(error)) == ("what happened", cause, "what happened")


@pytest.mark.parametrize("name", TAXONOMY)
def test_passing_failure_is_no_refusal(name: str) -> None:
    """What may be tried again is never a 4xx that clients take for final, and says when to come back."""
    kind = KINDS[name]
    if kind.retry_after is not None:
        assert kind.status == 503
    if kind.source is not Source.DOWNSTREAM:
        assert kind.status >= 500


LABELS = {
    "": (200, 204, 302, 399),
    "validation": (400, 413, 422),
    "not_found": (404,),
    "overload": (429, 529),
    "cancelled": (499,),
    "internal": (500, 502, 599),
    "not_implemented": (501,),
    "unavailable": (503,),
    "response_timeout": (504,),
}


@pytest.mark.parametrize("label", LABELS)
def test_label_of_an_engines_status(label: str) -> None:
    """Every status an engine may send has a label, and a success has none."""
    assert {error_type_of(status) for status in LABELS[label]} == {label}
