"""Exchanges constructed after the public source: their outcomes, their joins, and the simulated engine's."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Ids, ReplyHead
from gateway.formats.trtllm import FORMAT
from gateway.sim import SimConfig, SimServer
from gateway.testing.drive import Outcome, document, drive
from tests.formats.support import FIXTURES, HEX, LOOSE_JSON, View, lines, recorded_ending, records
from tests.sim.client import ask
from tests.sim.shapes import shape

RECORDS = records("trtllm", "generate")
IDS = Ids((HEX,), (HEX,))
#: Made up for each reply.
VOLATILE = frozenset({"id", "created"})
#: A stream, and the unary reply to the same request.
PAIRS = [
    ("stream-usage", "unary"),
    ("stream-logprobs", "unary-logprobs"),
    ("batch-stream-usage", "batch-unary"),
]
#: What the simulated engine does not do: it fails when it is told to, and repeats no samples.
NOT_SIMULATED = {
    *("stream-error", "stream-timeout", "stream-cancelled", "error-generation", "stop-id"),
    "samples-stream-repeated",
}


def read(name: str, kind: str = "reader", body: bytes | None = None) -> Outcome:
    record = RECORDS[name]
    request = FORMAT.parse(record["request_body"].encode(), lines(record["request_headers"]))
    head = ReplyHead(record["status"], lines(record["headers"]))
    return drive(getattr(FORMAT, kind)(request, View(), IDS, head), [body or record["body"].encode()])


def outcomes() -> list[dict[str, str]]:
    with (FIXTURES / "trtllm" / "outcomes.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_every_exchange_says_that_it_was_not_recorded_and_has_an_outcome() -> None:
    found = [*RECORDS.values(), *records("trtllm", "control").values()]
    assert all("not recorded" in record["server"] for record in found)
    assert {row["name"] for row in outcomes()} == RECORDS.keys()


@pytest.mark.parametrize("row", outcomes(), ids=lambda row: row["name"])
def test_exchange_has_its_outcome_and_comes_back_as_it_was_sent(row: dict[str, str]) -> None:
    outcome, facts = read(row["name"]), read(row["name"]).facts
    sent = RECORDS[row["name"]]["body"].encode()
    # What follows the first [DONE] is dropped, as clients stop there.
    assert outcome.out == sent.replace(b"data: [DONE]\n\ndata: [DONE]\n\n", b"data: [DONE]\n\n")
    prompt, error = (
        None if row[name] == "-" else int(row[name]) for name in ("prompt_tokens", "error_status")
    )
    reasons = [] if row["finish_reasons"] == "-" else row["finish_reasons"].split(",")
    assert recorded_ending(facts, outcome.failure) == row["outcome"]
    assert (facts.tokens, facts.finish_reasons) == (int(row["tokens"]), reasons)
    assert (facts.prompt_tokens, facts.error_status) == (prompt, error)


@pytest.mark.parametrize("name", PAIRS[0])
@pytest.mark.parametrize("value", LOOSE_JSON)
def test_reply_that_only_pythons_json_reads_is_relayed_and_counted(name: str, value: bytes) -> None:
    loose = RECORDS[name]["body"].encode().replace(b'{"id"', b'{"x":[%b,"y"],"id"' % value)
    outcome = read(name, body=loose)
    assert (outcome.out, outcome.failure, b'"x"' in loose) == (loose, None, True)
    assert outcome.facts == read(name).facts
    joined = read(name, "join", loose)
    assert (joined.failure, joined.facts) == (None, read(name, "join").facts)


@pytest.mark.parametrize(("stream", "unary"), PAIRS)
def test_stream_joins_to_the_unary_reply(stream: str, unary: str) -> None:
    volatile = VOLATILE if "usage" in stream else VOLATILE | {"prompt_tokens_details"}
    joined = read(stream, "join").out
    assert document(joined, volatile) == document(RECORDS[unary]["body"].encode(), volatile)
    assert list(json.loads(joined)) == list(json.loads(RECORDS[unary]["body"]))


def test_error_event_joins_to_an_error_reply() -> None:
    reply = json.loads(read("stream-error", "join").out)
    assert (reply["object"], reply["type"], reply["code"]) == ("error", "server_error", 500)
    assert "illegal memory access" in reply["message"]


def test_stream_that_repeats_samples_is_not_joined() -> None:
    """Its tokens are more than its usage counts."""
    assert read("samples-stream-repeated").failure is None
    assert read("samples-stream-repeated", "join").failure is UpstreamMalformed


@pytest.mark.parametrize("name", [name for name in RECORDS if name not in NOT_SIMULATED])
async def test_simulated_engine_answers_in_the_same_shape(name: str) -> None:
    record = RECORDS[name]
    async with SimServer("trtllm", SimConfig(model="tiny", max_model_len=2048, vocab_size=512)) as sim:
        answer = await ask(
            sim.port, record["path"], record["request_body"].encode(), headers=record["request_headers"]
        )
    assert answer.status == record["status"]
    if "event-stream" in answer.content_type:
        assert events(answer.body.decode()) == events(record["body"])
    elif answer.status == 200:
        assert shape(comparable(answer.json)) == shape(comparable(json.loads(record["body"])))
    else:
        assert answer.json == json.loads(record["body"])


def comparable(reply: Any) -> Any:
    """A reply without what is keyed by the texts of tokens."""
    for choice in reply["choices"]:
        if choice["logprobs"]:
            choice["logprobs"]["top_logprobs"] = len(choice["logprobs"]["top_logprobs"])
    return reply


def events(body: str) -> list[Any]:
    """The shapes of a stream's events."""
    found = [event.removeprefix("data: ") for event in body.split("\n\n")]
    assert found[-2:] == ["[DONE]", ""]
    return [shape(comparable(json.loads(event))) for event in found[:-2]]


@pytest.mark.parametrize(
    "member",
    [{"n": None}, {"min_tokens": None}, {"top_k": None}, {"stop": 5}, {"stop": [5]}, {"stop_token_ids": 5}]
    + [{"stop_token_ids": [[1]]}, {"stream_options": 5, "stream": True}, {"stream_options": []}],
)
async def test_simulated_engine_refuses_a_member_of_another_type(member: dict[str, Any]) -> None:
    async with SimServer("trtllm") as sim:
        body = json.dumps({"model": "sim", "prompt": [1], "max_tokens": 1, **member}).encode()
        reply = await ask(sim.port, "/v1/completions", body)
        assert reply.status == 400 and next(iter(member)) in json.loads(reply.body)["error"]
