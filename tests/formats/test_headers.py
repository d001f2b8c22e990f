"""End-to-end lines cross the gateway, hop-by-hop lines do not."""

from __future__ import annotations

import pytest

from gateway.formats.headers import encoded, media_type, to_client, to_worker

END_TO_END = [
    (b"content-type", b"application/json"),
    (b"x-data-parallel-rank", b"3"),
    (b"traceparent", b"00-1-2-01"),
    (b"authorization", b"Bearer client"),
    (b"x-twice", b"1"),
    (b"x-twice", b"2"),
]
HOP_BY_HOP = [
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
]


@pytest.mark.parametrize("name", [*HOP_BY_HOP, b"host", b"content-length", b"expect", b"accept-encoding"])
def test_to_worker_drops(name: bytes) -> None:
    assert to_worker([(name, b"x"), *END_TO_END]) == END_TO_END


@pytest.mark.parametrize("name", [*HOP_BY_HOP, b"date", b"server", b"content-length"])
def test_to_client_drops(name: bytes) -> None:
    assert to_client([(name, b"x"), *END_TO_END]) == END_TO_END


def test_connection_line_that_names_no_other_is_dropped_alone() -> None:
    assert to_worker([(b"connection", b"close"), *END_TO_END]) == END_TO_END


@pytest.mark.parametrize("value", [b"close, X-Mine", b"x-mine,keep-alive", b"X-MINE"])
def test_lines_named_by_connection_are_dropped_both_ways(value: bytes) -> None:
    lines = [(b"connection", value), (b"x-mine", b"1"), *END_TO_END]
    assert to_worker(lines) == END_TO_END
    assert to_client(lines) == END_TO_END


def test_lines_named_by_a_second_connection_line_are_dropped() -> None:
    lines = [(b"connection", b"x-a"), (b"connection", b"x-b"), (b"x-a", b"1"), (b"x-b", b"1"), *END_TO_END]
    assert to_worker(lines) == END_TO_END


def test_worker_key_replaces_the_clients() -> None:
    sent = to_worker(END_TO_END, b"Bearer worker")
    assert [value for name, value in sent if name == b"authorization"] == [b"Bearer worker"]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([], b""),
        ([(b"content-type", b"")], b""),
        ([(b"content-type", b" Text/Event-Stream ; charset=utf-8")], b"text/event-stream"),
        ([(b"content-type", b"text/plain; a=application/json")], b"text/plain"),
    ],
)
def test_media_type_is_in_lower_case_and_without_parameters(
    lines: list[tuple[bytes, bytes]], kind: bytes
) -> None:
    assert media_type(lines) == kind


@pytest.mark.parametrize(
    ("value", "is_encoded"),
    [
        (None, False),
        (b"", False),
        (b"identity", False),
        (b" Identity", False),
        (b"gzip", True),
        (b"BR", True),
    ],
)
def test_identity_in_any_spelling_is_no_encoding(value: bytes | None, is_encoded: bool) -> None:
    assert encoded([] if value is None else [(b"content-encoding", value)]) is is_encoded
