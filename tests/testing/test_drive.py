"""An exchange is driven in the order of the gateway's calls, and replies are compared as clients see them."""

from __future__ import annotations

import pytest

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import ReplyFacts
from gateway.testing.drive import document, drive, respelled, strings


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


@pytest.mark.parametrize(
    ("failure", "at", "out"),
    [
        (None, b"", b"AB."),
        (UpstreamIncomplete("no"), b"b", b"A!no"),
        (UpstreamIncomplete("no"), b"", b"AB!no"),
        (UpstreamMalformed("no"), b"b", b"A!no"),
        (UpstreamMalformed("no"), b"", b"AB!no"),
    ],
)
def test_outcome_is_all_that_was_given_out_and_a_failure_that_a_reader_may_raise(
    failure: GatewayError | None, at: bytes, out: bytes
) -> None:
    outcome = drive(Scripted(failure, at=at), [b"a", b"", b"b"])
    assert (outcome.out, outcome.failure) == (out, type(failure) if failure else None)
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


def test_ids_are_respelled_and_strings_found_wherever_they_stand() -> None:
    assert respelled(b'"x1" x1_0 y', ("x1", "y"), ("p", "q")) == b'"p" p_0 q'
    assert list(strings({"k": ["a", {"l": "b"}, 1, None], "m": "c"})) == ["a", "b", "c"]
