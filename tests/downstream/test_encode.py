"""The bytes of a reply."""

from __future__ import annotations

from gateway.downstream.encode import complete_reply


def test_reply_that_may_have_no_body_has_no_length() -> None:
    assert complete_reply(204, [(b"a", b"b")], b"", b"") == b"HTTP/1.1 204 No Content\r\na: b\r\n\r\n"
