"""Paths of a server's files do not reach a client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.paths import LONGEST, PathCutter, cut_paths

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
