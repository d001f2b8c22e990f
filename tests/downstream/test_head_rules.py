"""The rules for the head of a request, without a parser. (With one: test_request_parser.py)"""

from __future__ import annotations

import pytest

from gateway.downstream.head_rules import (
    InvalidRequest,
    check_size,
    check_version,
    framing,
    origin_form,
)
from gateway.limits import HeadLimits

LINE = (b"name", b"value")
#: Bytes of a line on the wire: colon, space and line end included.
SIZE = len(b"name: value\r\n")


@pytest.mark.parametrize(("lines", "size", "limit"), [(2, 4 * SIZE, "lines"), (4, 3 * SIZE, "size")])
def test_head_over_a_limit_is_rejected_by_the_name_of_the_limit(lines: int, size: int, limit: str) -> None:
    with pytest.raises(InvalidRequest) as rejected:
        check_size(b"/", [LINE] * 3, HeadLimits(size, lines))
    assert (rejected.value.status, rejected.value.limit) == (431, f"request_head_{limit}")


def test_head_at_its_limits_is_accepted() -> None:
    check_size(b"/", [LINE] * 3, HeadLimits(3 * SIZE + 1, 3))


@pytest.mark.parametrize(
    ("version", "hosts", "accepted"),
    [
        ("1.0", 0, True),
        ("1.0", 1, True),
        ("1.1", 1, True),
        ("2.0", 1, False),
        ("0.9", 1, False),
        ("1.1", 0, False),
        ("1.1", 2, False),
        ("1.0", 2, False),
    ],
)
def test_version_decides_how_many_host_lines_are_accepted(version: str, hosts: int, accepted: bool) -> None:
    if accepted:
        check_version(version, hosts)
    else:
        with pytest.raises(InvalidRequest):
            check_version(version, hosts)


def test_framing_is_the_lines_that_define_the_end_of_the_body() -> None:
    lines = [(b"content-length", b"3"), LINE, (b"transfer-encoding", b"chunked")]
    assert framing(lines) == [lines[0], lines[2]]
    assert framing([LINE]) == []


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://host/generate?a=b", b"/generate?a=b"),
        (b"http://host:1", b"/"),
        (b"*", b"*"),
        (b"host:443", b"host:443"),
    ],
)
def test_absolute_url_becomes_its_path_and_query(target: bytes, path: bytes) -> None:
    assert origin_form(target) == path
