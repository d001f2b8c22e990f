"""What a head may be is the same whoever reads it. (Through a socket: test_odd_heads.py)"""

from __future__ import annotations

import pytest

from gateway.downstream.head_rules import (
    EXCESSES,
    Excess,
    Refused,
    check_coding,
    check_excess,
    check_version,
    framing,
    origin_form,
)
from gateway.limits import HeadLimits

LINE = (b"name", b"value")
#: What a line takes on the wire, with colon, blank and line end.
SIZE = len(b"name: value\r\n")


@pytest.mark.parametrize(("lines", "size", "excess"), [(2, 4 * SIZE, "lines"), (4, 3 * SIZE, "size")])
def test_head_with_too_much_of_something_is_told_what(lines: int, size: int, excess: str) -> None:
    limits = HeadLimits(size, lines)
    with pytest.raises(Excess, match=excess):
        check_excess(b"/", [LINE] * 3, limits)
    assert excess in EXCESSES


def test_head_at_its_limits_is_taken() -> None:
    check_excess(b"/", [LINE] * 3, HeadLimits(3 * SIZE + 1, 3))


@pytest.mark.parametrize(
    ("value", "http11"),
    [(b"gzip", True), (b"gzip, chunked", True), (b"chunked, identity", True), (b"chunked", False)],
)
def test_coding_that_others_read_otherwise_is_refused(value: bytes, http11: bool) -> None:
    with pytest.raises(Refused, match="chunked alone"):
        check_coding(value, http11)


@pytest.mark.parametrize(("version", "hosts"), [("2.0", 1), ("0.9", 1), ("1.1", 0), ("1.1", 2), ("1.0", 2)])
def test_version_and_hosts_that_do_not_go_together_are_refused(version: str, hosts: int) -> None:
    with pytest.raises(Refused):
        check_version(version, hosts)


@pytest.mark.parametrize(("version", "hosts"), [("1.0", 0), ("1.0", 1), ("1.1", 1)])
def test_version_and_host_as_they_should_be_are_taken(version: str, hosts: int) -> None:
    check_version(version, hosts)


def test_framing_is_what_says_where_the_body_ends() -> None:
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
def test_absolute_url_is_the_path_that_it_names(target: bytes, path: bytes) -> None:
    assert origin_form(target) == path
