"""End-to-end lines cross the gateway, hop-by-hop lines do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.formats.headers import encoded, media_type, to_client, to_worker

END_TO_END = [
    (b"x-request-id", b"1"),
    (b"content-type", b"application/json"),
    (b"x-data-parallel-rank", b"3"),
    (b"traceparent", b"00-1-2-01"),
    (b"authorization", b"Bearer client"),
    (b"x-twice", b"1"),
    (b"x-twice", b"2"),
]
HOP_BY_HOP = (
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade"
).split()


@pytest.mark.parametrize(
    ("dropped", "named"),
    [
        *((name, b"x") for name in HOP_BY_HOP),
        (b"x-mine", b"close, X-Mine"),
        (b"x-mine", b"x-mine,keep-alive"),
        (b"x-mine", b"X-MINE"),
    ],
)
def test_lines_of_one_hop_and_those_named_by_connection_are_dropped_both_ways(
    dropped: bytes, named: bytes
) -> None:
    lines = [(b"connection", b"x-b"), (b"connection", named), (dropped, b"1"), (b"x-b", b"1"), *END_TO_END]
    assert to_worker(lines) == to_client(lines) == END_TO_END
    assert to_worker([(b"connection", b"close"), *END_TO_END]) == END_TO_END


@pytest.mark.parametrize(
    ("cross", "names"),
    [
        (to_worker, [b"host", b"content-length", b"expect", b"accept-encoding"]),
        (to_client, [b"date", b"server", b"content-length"]),
    ],
)
def test_lines_that_the_gateway_sets_are_dropped(cross: Callable[..., object], names: list[bytes]) -> None:
    for name in names:
        assert cross([(name, b"x"), *END_TO_END]) == END_TO_END


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
