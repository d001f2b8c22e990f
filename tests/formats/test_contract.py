"""The records that cross the border of a format."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.formats.contract import (
    ErrorReply,
    Ids,
    Projection,
    ReplyFacts,
    ReplyHead,
    UpstreamRequest,
    header,
)
from gateway.formats.optional import AbortTarget
from gateway.formats.routing_hints import Hints
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

RECORDS: list[tuple[Any, str]] = [
    (Ids(("a",), ("a",)), "public"),
    (Hints(), "lora"),
    (Projection(stream=False), "stream"),
    (WorkerInfo("e", "c", True), "usable"),
    (ProbeRequest("GET", "/"), "target"),
    (ProbeReply(200, b""), "status"),
    (UpstreamRequest(b"POST", b"/", [], b""), "body"),
    (ReplyHead(200, []), "status"),
    (ErrorReply(400, [], b""), "body"),
    (AbortTarget(), "ids"),
]


def test_header_gives_the_first_value() -> None:
    """Repeated lines stand in their order."""
    lines = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    assert (header(lines, b"a"), header(lines, b"b"), header(lines, b"c")) == (b"1", b"2", None)


def test_header_with_an_empty_value_is_there() -> None:
    """Empty is not missing."""
    assert header([(b"a", b"")], b"a") == b""


@pytest.mark.parametrize(
    ("public", "dispatch", "private"),
    [(("a",), ("a",), False), (("a",), ("b",), True), (("a", "b"), ("a", "c"), True), ((), (), False)],
)
def test_ids_are_private_when_the_engine_sees_others(
    public: tuple[str, ...], dispatch: tuple[str, ...], private: bool
) -> None:
    """One that differs is enough."""
    assert Ids(public, dispatch).private is private


@pytest.mark.parametrize(("record", "name"), RECORDS, ids=lambda value: type(value).__name__)
def test_record_cannot_be_changed(record: Any, name: str) -> None:
    """What one side handed over stays as it was."""
    with pytest.raises(AttributeError):
        setattr(record, name, None)


@pytest.mark.parametrize(
    ("record", "name"), [*RECORDS, (ReplyFacts(), "tokens")], ids=lambda v: type(v).__name__
)
def test_record_has_no_room_for_misspelt_names(record: Any, name: str) -> None:
    """Slots only: a typing slip is an error, and records stay small."""
    assert hasattr(record, name)
    assert not hasattr(record, "__dict__")


def test_facts_of_two_replies_are_apart() -> None:
    """No list is shared between exchanges."""
    one, other = ReplyFacts(), ReplyFacts()
    one.finish_reasons.append("stop")
    assert other == ReplyFacts()
    assert other.finish_reasons == []
