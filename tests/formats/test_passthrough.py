"""A reply that is not inspected is buffered up to a limit, and relayed unchanged."""

from __future__ import annotations

import pytest

from gateway.formats.contract import Ending, ReplyFacts
from gateway.formats.passthrough import BUFFER_LIMIT, PassthroughReader


def test_long_reply_is_passed_on_as_it_comes() -> None:
    reader = PassthroughReader(400)
    assert reader.feed(b"x" * BUFFER_LIMIT) == b""
    assert reader.feed(b"y") == b"x" * BUFFER_LIMIT + b"y"
    assert (reader.feed(b"z"), reader.finish()) == (b"z", b"")


@pytest.mark.parametrize(
    ("status", "ending"),
    [(200, Ending.OPAQUE), (304, Ending.OPAQUE), (400, Ending.ERROR_STATUS), (599, Ending.ERROR_STATUS)],
)
def test_ending_follows_from_the_status_and_is_the_only_fact(status: int, ending: Ending) -> None:
    reader = PassthroughReader(status)
    reader.feed(b'{"usage":{"completion_tokens":5}}')
    reader.finish()
    assert reader.facts == ReplyFacts(ending=ending)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_paths_are_cut_wherever_the_bytes_are(size: int) -> None:
    body = b"x" * BUFFER_LIMIT + b" /opt/engine/core.py line " * 9
    reader = PassthroughReader(500, cut=True)
    cut = [body[:BUFFER_LIMIT], *(body[at : at + size] for at in range(BUFFER_LIMIT, len(body), size))]
    passed = b"".join(map(reader.feed, cut)) + reader.finish()
    assert passed == body.replace(b"/opt/engine/core.py", b"<path>")
    assert not reader.identity
