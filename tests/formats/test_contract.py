"""The records of the contract."""

from __future__ import annotations

import pytest

from gateway.formats.contract import Ids, ReplyFacts, header


def test_header_gives_the_first_value() -> None:
    lines = [(b"a", b"1"), (b"b", b""), (b"a", b"3")]
    assert (header(lines, b"a"), header(lines, b"b"), header(lines, b"c")) == (b"1", b"", None)


@pytest.mark.parametrize(
    ("public", "dispatch", "private"),
    [(("a",), ("a",), False), (("a",), ("b",), True), (("a", "b"), ("a", "c"), True), ((), (), False)],
)
def test_ids_are_private_when_the_engine_sees_others(
    public: tuple[str, ...], dispatch: tuple[str, ...], private: bool
) -> None:
    assert Ids(public, dispatch).private is private


def test_facts_of_two_replies_are_apart() -> None:
    one, other = ReplyFacts(), ReplyFacts()
    one.finish_reasons.append("stop")
    assert other == ReplyFacts()
    assert other.finish_reasons == []
