"""A stream is joined into one reply; that it is the engine's unary reply is a law of the contract suite."""

from __future__ import annotations

import json

import pytest

from gateway.errors import UpstreamIncomplete
from gateway.formats.contract import Ending
from gateway.testing.drive import drive
from tests.formats.dialects import BOTH, DIALECTS, Dialect
from tests.formats.support import DONE


@BOTH
def test_join_reader_gives_nothing_before_its_end_and_nothing_after_a_failure(dialect: Dialect) -> None:
    reader = dialect.reading("join")
    assert (reader.streaming, reader.identity) == (False, False)
    assert reader.feed(b"".join(dialect.life)) == b""
    assert reader.fail(UpstreamIncomplete("x")) == b""


@BOTH
@pytest.mark.parametrize("rest", [b"data: {\n\n", b"data: [1]\n\n", b'data: {"a":"\xff"}\n\n', b"\xff"])
def test_what_follows_the_end_is_ignored(dialect: Dialect, rest: bytes) -> None:
    stream = b"".join(dialect.life)
    complete = drive(dialect.reading("join"), [stream + DONE])
    assert complete.failure is None
    for more in (rest, DONE + rest, DONE + dialect.life[0] + rest):
        assert drive(dialect.reading("join"), [stream + more, rest]).out == complete.out


@BOTH
def test_routing_data_becomes_a_fact_and_leaves_the_reply(dialect: Dialect) -> None:
    first, second, last = dialect.life
    named = first.replace(b"{", b'{"routing_data":{"worker_id":7},', 1)
    outcome = drive(dialect.reading("join"), [named + second + last + DONE])
    assert outcome.out == drive(dialect.reading("join"), [first + second + last + DONE]).out
    assert outcome.facts.routing_data == {"worker_id": 7}


@BOTH
@pytest.mark.parametrize(
    ("error", "status", "reply"),
    [
        ('{"message": "at /a/b.py", "code": 400}', 400, '{"message":"at /a/b.py","code":400}'),
        ('{"message": "at /a/b.py", "code": 500}', 500, '{"message":"at <path>","code":500}'),
        ('"scaling"', 500, '"scaling"'),
    ],
)
def test_error_event_becomes_the_error_reply(dialect: Dialect, error: str, status: int, reply: str) -> None:
    """Spelled as without a stream, with its status in the facts, even after tokens."""
    stream = dialect.life[0] + b'data: {"error": %b}\n\n' % error.encode() + DONE
    outcome = drive(dialect.reading("join"), [stream])
    assert outcome.out.decode() == '{"error":%s}' % reply  # noqa: UP031
    assert (outcome.facts.error_status, outcome.facts.ending) == (status, Ending.ERROR_EVENT)


@pytest.mark.parametrize(("status", "message"), [(400, "no /srv/x/y"), (503, "no <path>")])
def test_abort_with_a_status_joins_to_sglangs_error(status: int, message: str) -> None:
    finish = {"type": "abort", "status_code": status, "message": "no /srv/x/y"}
    event = {"text": "", "output_ids": [], "meta_info": {"id": "a", "finish_reason": finish}, "index": 0}
    reader = DIALECTS["sglang"].reading("join")
    outcome = drive(reader, [b"data: %b\n\n" % json.dumps(event).encode() + DONE])
    reply = json.loads(outcome.out)
    assert (reply.get("error", reply)["message"], outcome.facts.error_status) == (message, status)
