"""Every recorded generate exchange with a real engine passes the reader, however it is cut."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.contract import Ending, Reader, ReplyHead
from gateway.formats.vllm import FORMAT
from tests.formats.outcomes import rows
from tests.formats.support import View, lines, pieces
from tests.formats.vllm.support import ids_of, recorded, request

#: There is no Ending where the gateway answers itself (``refused``), nothing ever came (``no reply``), or
#: where it is of a route that the gateway calls (``control``) or of another API (``elsewhere``).
OUTCOMES = {row.name: row for row in rows("vllm")}
#: Recorded bodies that are no JSON object: the gateway answers these itself.
NOT_JSON = {name for name, found in OUTCOMES.items() if found.outcome == "refused"}

ANSWERED = {name: record for name, record in recorded("generate").items() if "status" in record}
READABLE = sorted(ANSWERED.keys() - NOT_JSON)


def reader_for(record: dict[str, Any]) -> Reader:
    asked = request(record["request_body"].encode(), lines(record["request_headers"]))
    head = ReplyHead(record["status"], lines(record["headers"]))
    return FORMAT.reader(asked, View(), ids_of(asked), head)


def body_of(record: dict[str, Any]) -> bytes:
    return str(record["body"]).encode()


def test_table_has_every_recorded_exchange_and_no_other() -> None:
    kinds: dict[str, set[str]] = {}
    for found in OUTCOMES.values():
        kinds.setdefault(found.outcome, set()).add(found.name)
    assert kinds.keys() - set(Ending) == {"control", "elsewhere", "refused", "no reply"}
    assert kinds.pop("control") == recorded("control").keys()
    assert kinds.pop("elsewhere") == recorded("elsewhere").keys()
    assert set().union(*kinds.values()) == recorded("generate").keys()
    for name, record in recorded("generate").items():
        assert OUTCOMES[name].status == str(record.get("status", "-"))
        assert (OUTCOMES[name].outcome == "no reply") == ("status" not in record)


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("cut", ["one piece", "bytes", "random 1", "random 2", "random 3"])
def test_recorded_reply_passes_unchanged_however_it_is_cut(name: str, cut: str) -> None:
    record = ANSWERED[name]
    body = body_of(record)
    seed = len(body) if cut == "bytes" and len(body) > 40_000 else None
    if cut.startswith("random"):
        seed = int(cut[-1])
    reader = reader_for(record)
    parts = [body] if cut == "one piece" else pieces(body, seed)
    out = b"".join(reader.feed(part) for part in parts)
    assert out + reader.finish() == body
    facts = reader.facts
    assert facts.ending == OUTCOMES[name].outcome
    assert (facts.tokens, facts.finish_reasons, facts.prompt_tokens, facts.error_status) == OUTCOMES[
        name
    ].facts
    assert facts.terminal == (record["status"] == 200)
    assert facts.cached_tokens is None


@pytest.mark.parametrize("name", sorted(recorded("generate").keys() - NOT_JSON))
def test_recorded_request_is_not_refused(name: str) -> None:
    """The engine refuses in its own words, which reach the client."""
    record = recorded("generate")[name]
    asked = request(record["request_body"].encode(), lines(record["request_headers"]))
    assert asked.body == record["request_body"].encode()
    if record.get("status") == 200:
        assert asked.stream == str(record["body"]).startswith("data:")
        prompt = OUTCOMES[name].prompt_tokens
        assert prompt in ("-", str(asked.prompt_tokens))


@pytest.mark.parametrize("name", sorted(NOT_JSON))
def test_recorded_body_that_is_no_object_is_refused(name: str) -> None:
    """The gateway answers, with the engine's status."""
    record = ANSWERED[name]
    with pytest.raises(InvalidRequest) as caught:
        request(record["request_body"].encode())
    assert caught.value.status == record["status"]
