"""Detection of the stream mode from events."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.formats.sglang.raw_members import RawEvent, parse_raw_event
from gateway.formats.sglang.stream_mode import CUMULATIVE, INCREMENTAL, StreamMode
from tests.formats.support import compact

I, C = True, False  # noqa: E741


def event(ids: list[int] | None, total: int | None, text: str | None = None) -> RawEvent:
    document: dict[str, Any] = {"meta_info": {"completion_tokens": total}}
    if ids is not None:
        document["output_ids"] = ids
    if text is not None:
        document["text"] = text
    found = parse_raw_event(compact(document))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("held", "ids", "total", "result"),
    [
        # held before, ids and total of the event -> (nothing said, said incremental, said cumulative)
        (b"[1", [1, 2], 2, (C, C, C)),
        (b"[1", [2], 2, (I, I, I)),
        (b"[1", [], 1, (I, I, I)),
        (b"[1,2", [3, 4], 4, (I, I, I)),
        (b"[1,2", [1, 2, 3], 3, (C, C, C)),
        # The id is the one before: only the total tells, or a stop token that is not in the ids.
        (b"[5", [5], 2, (I, I, C)),
        (b"[5", [5, 6], 3, (I, I, C)),
        # An id like another's beginning is not that id.
        (b"[1", [12], 2, (I, I, I)),
        # No total: ids that begin with those before are all so far.
        (b"[1", [1, 2], None, (C, I, C)),
        (b"[1", [2], None, (I, I, C)),
    ],
)
def test_event_tells_the_mode(
    held: bytes, ids: list[int], total: int | None, result: tuple[bool, bool, bool]
) -> None:
    for declared, wanted in zip((None, INCREMENTAL, CUMULATIVE), result, strict=True):
        mode = StreamMode(declared)
        mode.observe(held, b'"', event(ids, total))
        assert mode.incremental is wanted


@pytest.mark.parametrize("held", [b"", b"["])
def test_first_event_tells_nothing(held: bytes) -> None:
    mode = StreamMode(None)
    mode.observe(held, b'"', event([1, 2], 2, "a"))
    assert mode.incremental is None


@pytest.mark.parametrize(("text", "result"), [("one two", C), (" two", I), ("", I), (None, I)])
def test_text_tells_where_there_are_no_ids(text: str | None, result: bool) -> None:
    mode = StreamMode(None)
    mode.observe(b"", b'"one', event(None, None, text))
    assert mode.incremental is result


@pytest.mark.parametrize(
    ("held", "ids", "total", "result"),
    [
        (b"[", [], 0, None),
        (b"[1", [1], 1, None),
        (b"[1,2", [2], 2, I),
        (b"[1", [2, 3, 3], 3, I),
        (b"[", [1, 2, 2], 2, I),
        (b"[", [1, 2], 2, C),
        (b"[1,2", [1, 2], 2, C),
        (b"[1,2", [1, 2, 3], 3, C),
        (b"[1", [1, 2], 2, C),
        (b"[1", [2, 2], 2, I),
    ],
)
def test_echo_tells_the_mode_by_the_ids_it_repeats(
    held: bytes, ids: list[int], total: int, result: bool | None
) -> None:
    """An echo that is the same in both modes decides nothing for the other samples of the stream."""
    mode = StreamMode(None)
    mode.observe_echo(held, event(ids, total))
    assert mode.incremental is result
