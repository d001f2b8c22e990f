"""Paths of a server's files do not reach a client."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.paths import LONGEST, PathCutter, cut_paths
from gateway.testing.drive import drive
from tests.formats.dialects import BOTH, DIALECTS, Dialect
from tests.formats.support import JSON, ZIPPED

WORDS = st.sampled_from(
    ["/", "/opt", "/a/b.py", " ", '"', "\\n", "x", ":", "http://h/p/q", "\\/opt\\/x", "\\"]
)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        (b'File \\"/opt/venv/lib/x.py\\", line 3', b'File \\"<path>\\", line 3'),
        (b"see /home/a.b/c_d-1/e, then", b"see <path>, then"),
        (b"/srv/x/", b"<path>"),
        (b"trace:\\n/usr/lib/python/a.py:12", b"trace:\\n<path>:12"),
        (b"(/a/b.c) [/c/d.json] =/e/f.py.", b"(<path>) [<path>] =<path>"),
        ("/donn\u00e9es/mod\u00e8le.bin".encode(), b"<path>"),
        (b"at \\/usr\\/lib\\/x.py:3", b"at <path>:3"),
        (b"http:\\/\\/h\\/p\\/x.py", b"http:\\/\\/h\\/p\\/x.py"),
        (b"GET /v1/models. /inference/v1/generate", b"GET /v1/models. /inference/v1/generate"),
        (b"/v1.5/models /a/.b /x/7.25", b"/v1.5/models /a/.b /x/7.25"),
        (b"file:///etc/hosts/x", b"file:///etc/hosts/x"),
        (b"and/or, 1/2/3, ./a/b, ../a/b, ~/a/b", b"and/or, 1/2/3, ./a/b, ../a/b, ~/a/b"),
        (b"POST /generate", b"POST /generate"),
        (b"text/plain; a</b/c", b"text/plain; a</b/c"),
    ],
)
def test_absolute_path_is_cut_and_nothing_else(text: bytes, cut: bytes) -> None:
    """File paths of two names or more are replaced; URLs, fractions and routes are not."""
    assert cut_paths(text) == cut


@given(st.lists(WORDS, max_size=20), st.lists(st.integers(0, 80), max_size=6))
def test_path_is_cut_wherever_a_read_ends(words: list[str], cuts: list[int]) -> None:
    text = "".join(words).encode()
    cutter = PathCutter()
    places = [0, *sorted(min(place, len(text)) for place in cuts), len(text)]
    out = b"".join(cutter.feed(text[a:b]) for a, b in zip(places, places[1:], strict=False))
    assert out + cutter.flush() == cut_paths(text)


def test_text_without_an_end_is_not_held_for_long() -> None:
    cutter = PathCutter()
    assert len(cutter.feed(b"x" * 10_000)) == 10_000 - LONGEST
    assert len(cutter.flush()) == LONGEST


@BOTH
@pytest.mark.parametrize("status", [500, 502, 503, 400, 404, 429])
def test_paths_are_cut_from_an_engines_failure_and_no_other(dialect: Dialect, status: int) -> None:
    """In a reply and in a stream; what the engine says of a request is the client's own."""
    body = b'{"error":{"message":"File \\"/opt/engine/core.py\\", line 7","code":%d}}' % status
    for reported, stream in (body, False), (b"data: %b\n\n" % body, True):
        reading = partial(dialect.reading, stream=stream, status=200 if stream else status)
        shown = reported.replace(b"/opt/engine/core.py", b"<path>") if status >= 500 else reported
        reader = reading()
        assert drive(reader, [reported]).out == shown
        assert reader.streaming or reader.identity is (status < 500)
        assert drive(reading(passthrough_engine_errors="true"), [reported]).out == reported


@BOTH
def test_encoded_failure_keeps_every_byte(dialect: Dialect) -> None:
    """Compressed bytes may look like a path."""
    body = b"\x1f\x8b /opt/engine/core.py "
    reader = dialect.reading(status=500, headers=[*JSON, *ZIPPED])
    assert (reader.feed(body), reader.finish(), reader.identity) == (b"", body, True)


@pytest.mark.parametrize(("status", "cut"), [(500, True), (503, True), (400, False)])
def test_generated_text_keeps_its_paths_where_the_engine_failed(status: int, cut: bool) -> None:
    finish = b'{"type":"abort","status_code":%d,"message":"at /a/b.py"}' % status
    event = b'data: {"text":"open /etc/passwd/x","meta_info":{"finish_reason":%b}}\n\n' % finish
    shown = event.replace(b"/a/b.py", b"<path>") if cut else event
    assert drive(DIALECTS["sglang"].reading(), [event]).out == shown
