"""Events are found in bytes however the bytes are cut."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Reader
from gateway.formats.sse import PIECE, EventScanner, payload
from tests.formats.dialects import DIALECTS

LINES = st.sampled_from(
    ["", "data: x", "data:  x", "data:x", "data", "data: [DONE]", ": hi", "id: 1", "datax: 1", "é"]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXTS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(
    lambda lines: "".join(line + end for line, end in lines).encode()
)
_MIB = 1024 * 1024
NOISE = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"data: b"]), max_size=14).map(b"".join)


FEEDERS = pytest.mark.parametrize("make", [EventScanner, *(dialect.reading for dialect in DIALECTS.values())])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


def scanned(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    scanner = EventScanner()
    found = [each for piece in pieces for each in scanner.feed(piece)]
    assert [data for _, data in found] == [payload(event) for event, _ in found]
    return [event for event, _ in found], scanner.pending


@given(TEXTS | NOISE, st.lists(st.integers(0, 1000), max_size=6))
def test_events_are_the_same_however_the_bytes_are_cut(data: bytes, places: list[int]) -> None:
    events, pending = scanned(cut(data, places))
    assert (events, pending) == scanned([data])
    assert b"".join(events) + pending == data


@given(st.lists(st.tuples(LINES, ENDS), max_size=12))
def test_events_have_the_data_that_the_standard_gives_them(lines: list[tuple[str, str]]) -> None:
    text = "".join(line + end for line, end in lines)
    wanted: list[bytes] = []
    kept: list[str] = []
    for line in re.split("\r\n|\n|\r", text)[:-1]:
        name, _, value = line.partition(":")
        if not line and kept:
            wanted.append("\n".join(kept).encode())
            kept = []
        elif name == "data":
            kept.append(value.removeprefix(" "))
    events, pending = scanned([text.encode()])
    found = [data for event in events if (data := payload(event)) is not None]
    # A blank line that could still be half of another line end is not taken for one yet.
    if pending.endswith(b"\n\r") and (last := payload(pending)) is not None:
        found.append(last)
    assert found == wanted


def test_event_over_the_limit_is_malformed_complete_ones_are_not() -> None:
    scanner = EventScanner(limit=10)
    assert len(scanner.feed(b"data: 0123456789\n\n")) == 1
    assert scanner.feed(b"data: 0123") == []
    with pytest.raises(UpstreamMalformed):
        scanner.feed(b"4")


@FEEDERS
def test_event_of_64_mib_is_accepted_and_one_byte_more_is_malformed(
    make: Callable[[], EventScanner | Reader],
) -> None:
    feeder = make()
    fed = [feeder.feed(bytes(_MIB)) for _ in range(64)]
    assert not any(fed)
    with pytest.raises(UpstreamMalformed, match="over the size limit"):
        feeder.feed(b"x")


def test_event_is_given_out_with_its_last_byte() -> None:
    scanner = EventScanner()
    assert scanner.feed(b"data: x\n") == []
    assert scanner.feed(b"\n") == [(b"data: x\n\n", b"x")]
    assert scanner.feed(b"data: x\r\n\r\n") == [(b"data: x\r\n\r\n", b"x")]
    assert scanner.pending == b""


def test_carriage_return_after_an_event_in_pieces_hides_no_blank_line() -> None:
    """The position searched in one event does not apply to the next."""
    pieces = [b"data", b": x\n\n", b"\n\r\n"]
    assert scanned(pieces) == scanned([b"".join(pieces)]) == ([b"data: x\n\n", b"\n\r\n"], b"")


def held(feed: Callable[[bytes], object], data: bytes, piece: int) -> tuple[int, int]:
    """Return the bytes held after feeding ``data`` in pieces of that size, and the most meanwhile."""
    feed(b"data: ")
    tracemalloc.start()
    try:
        for place in range(0, len(data), piece):
            feed(data[place : place + piece])
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("piece", [1, 100, PIECE - 1, PIECE])
def test_unfinished_event_takes_the_memory_of_its_bytes_however_it_is_cut(piece: int) -> None:
    data = b"x" * (8 * PIECE)
    now, most = held(EventScanner().feed, data, piece)
    assert now <= len(data) + 2 * PIECE
    assert most <= len(data) + 4 * PIECE


@FEEDERS
def test_long_event_is_in_memory_twice_at_most(make: Callable[[], EventScanner | Reader]) -> None:
    data = b'{"text":"%b"}\n\n' % (b"x" * 4 * _MIB)
    _, most = held(make().feed, data, 64 * 1024)
    assert most <= 2.1 * len(data)


def test_event_in_many_reads_is_moved_once() -> None:
    """A long one that comes in small pieces costs time in proportion to its length; so do those after it."""
    scanner = EventScanner()
    long = b"data: " + b"x" * 100_000
    assert all(scanner.feed(long[place : place + 1000]) == [] for place in range(0, len(long), 1000))
    assert scanner.feed(b"\n") == []
    assert scanner.feed(b"\ndata: a\n\ndata: b") == [(long + b"\n\n", long[6:]), (b"data: a\n\n", b"a")]
    assert scanner.feed(b"\n\n") == [(b"data: b\n\n", b"b")]
    assert scanner.pending == b""
