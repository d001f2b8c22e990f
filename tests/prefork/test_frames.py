"""Frames are parsed alike, however the bytes are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prefork.frames import Frame, FrameParser, Verb

FRAMES = st.builds(
    Frame,
    st.sampled_from(Verb),
    st.integers(0, 2**40),
    st.sampled_from([b"null", b'{"a b":[1, 2]}', b"1" * 300]),
)


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(1, 400), max_size=30))
def test_frames_survive_any_cut(frames: list[Frame], cuts: list[int]) -> None:
    wire, received, found = b"".join(frame.encode() for frame in frames), FrameParser(), []
    for cut in [*cuts, len(wire)]:
        found += received.feed(wire[:cut])
        wire = wire[cut:]
    assert found == frames


@pytest.mark.parametrize("line", [b"unknown 0 null\n", b"metrics x null\n", b"metrics\n"])
def test_line_that_is_no_frame_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        FrameParser().feed(line)
