"""Every recorded generate exchange with a real engine passes the reader, however it is cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gateway.errors import UpstreamIncomplete
from gateway.formats.contract import Ids, Reader, ReplyHead
from gateway.formats.sglang import FORMAT
from tests.formats.sglang.outcomes import OUTCOMES, REFUSED, SUCCEEDED
from tests.formats.sglang.support import parsed, recorded, run, same
from tests.formats.support import HEX, View, lines, pieces

#: Up to this many bytes a reply is also fed one byte at a time.
BYTE_BY_BYTE = 60_000

ALL = {name: record for name, record in recorded("generate").items() if "request_body" in record}
ANSWERED = sorted(name for name, record in ALL.items() if "status" in record and name not in REFUSED)


def _single(name: str) -> bool:
    request = parsed(ALL[name]["request_body"].encode())
    return request.batch is None and request.samples_per_prompt == 1


#: Replies whose one id is not empty.
WITH_AN_ID = [name for name in SUCCEEDED if _single(name) and '"id":"' in ALL[name]["body"]]
WITH_AN_ID.remove("err-rid-empty")


def reader(record: dict[str, Any], ids: Ids | None = None) -> Reader:
    request = parsed(record["request_body"].encode(), lines(record["request_headers"]))
    head = ReplyHead(record["status"], lines(record["headers"]))
    return FORMAT.reader(request, View(), ids or same(*(request.ids or (HEX,))), head)


def ways(body: bytes) -> Iterable[Iterable[bytes]]:
    yield [body]
    if len(body) <= BYTE_BY_BYTE:
        yield (body[place : place + 1] for place in range(len(body)))
    for seed in range(5):
        yield pieces(body, seed)


@pytest.mark.parametrize("name", ANSWERED)
def test_recorded_reply_is_relayed_unchanged_with_its_facts(name: str) -> None:
    """However it is cut, bytes and facts are the same; a stream that broke off ends in an error."""
    record = ALL[name]
    body = record["body"].encode()
    cut_short = OUTCOMES[name].outcome == "incomplete"
    for parts in ways(body):
        read = reader(record)
        outcome = run(read, parts)
        assert outcome.given == body
        assert isinstance(outcome.error, UpstreamIncomplete) == cut_short
        if name in SUCCEEDED:
            facts = read.facts
            found = (facts.tokens, facts.finish_reasons, facts.prompt_tokens, facts.error_status)
            assert (found, facts.terminal) == (OUTCOMES[name].facts, not cut_short)


@pytest.mark.parametrize("name", WITH_AN_ID)
def test_reply_recorded_under_a_private_id_shows_the_public_one(name: str) -> None:
    record = ALL[name]
    body = record["body"].encode()
    dispatch = body.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
    ids = Ids(('my "id" é',), (dispatch,))
    wanted = body.replace(b'"id":"%b"' % dispatch.encode(), '"id":"my \\"id\\" é"'.encode())
    for parts in ways(body):
        read = reader(record, ids)
        assert not read.identity
        assert run(read, parts).given == wanted
