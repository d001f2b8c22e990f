"""An exchange is driven in the order of the gateway's calls."""

from __future__ import annotations

import pytest

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ids, Reader, ReplyFacts
from gateway.testing.drive import claim, document, drive, respelled, strings


class Scripted:
    """A reader that returns its input in capitals, and raises ``failure``."""

    streaming = True
    identity = False

    def __init__(self, failure: Exception | None = None, *, at: bytes = b"") -> None:
        self.facts = ReplyFacts()
        self._failure = failure
        self._at = at

    def feed(self, data: bytes) -> bytes:
        if self._failure is not None and data == self._at:
            raise self._failure
        return data.upper()

    def finish(self) -> bytes:
        if self._failure is not None and not self._at:
            raise self._failure
        return b"."

    def fail(self, error: GatewayError) -> bytes:
        return f"!{error.message}".encode()


def test_reply_that_goes_well_is_all_that_was_given_out() -> None:
    reader: Reader = Scripted()
    outcome = drive(reader, [b"a", b"", b"b"])
    assert (outcome.out, outcome.failure, outcome.facts) == (b"AB.", None, reader.facts)


@pytest.mark.parametrize("kind", [UpstreamIncomplete, UpstreamMalformed])
@pytest.mark.parametrize(("at", "out"), [(b"b", b"A!no"), (b"", b"AB!no")], ids=["feed", "finish"])
def test_failure_ends_what_was_given_out(kind: type[GatewayError], at: bytes, out: bytes) -> None:
    outcome = drive(Scripted(kind("no"), at=at), [b"a", b"b"])
    assert (outcome.out, outcome.failure) == (out, kind)


def test_exception_that_no_reader_may_raise_is_passed_on() -> None:
    with pytest.raises(KeyError):
        drive(Scripted(KeyError("a")), [])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"a":1,"b":2}', b'{ "b": 2, "a": 1 }', True),
        (b'{"a":1.0}', b'{"a":1.00}', False),
        (b'{"a":1e-7}', b'{"a":0.0000001}', False),
        (b'{"a":1}', b'{"a":1.0}', False),
        (b'{"a":NaN}', b'{"a":NaN}', True),
        (b'{"a":{"t":1}}', b'{"a":{"t":2}}', True),
        (b'[{"t":1,"a":0}]', b'[{"a":0}]', True),
        (b"no json", b"no json", True),
        (b"no json", b"no  json", False),
    ],
)
def test_replies_are_the_same_but_for_order_space_and_what_is_volatile(
    one: bytes, other: bytes, same: bool
) -> None:
    """A number in another notation is different: a join must not change notations."""
    assert (document(one, frozenset({"t"})) == document(other, frozenset({"t"}))) is same


def test_strings_are_those_of_all_depths_and_no_keys() -> None:
    assert list(strings({"k": ["a", {"l": "b"}, 1, None], "m": "c"})) == ["a", "b", "c"]


def test_ids_are_respelled_wherever_they_stand() -> None:
    assert respelled(b'"x1" x1_0 y', ("x1", "y"), ("p", "q")) == b'"p" p_0 q'


def test_ids_are_claimed_as_the_gateway_does() -> None:
    assert claim(("a",), True) == Ids(("a",), ("a",))
    assert claim(("a",), False).public == ("a",) != claim(("a",), False).dispatch
    assert not claim((), True).private
