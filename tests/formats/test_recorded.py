"""Recorded exchanges with real engines: outcomes as in fixtures/<engine>/outcomes.tsv, streams that join.

An outcome is an Ending, or a word for why there is none: the gateway ``refused`` the request, it was
``unanswered``, it had ``another method`` than the route, or it was of a route that the gateway
calls (``control``) or of another API (``elsewhere``).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.errors import InvalidRequest, UpstreamIncomplete
from gateway.formats.contract import Ending, Ids, ReplyHead
from gateway.formats.sglang.schema import GenerateRequest as SglangRequest
from gateway.formats.sglang.schema import Generation
from gateway.formats.vllm.schema import GenerateReply
from gateway.formats.vllm.schema import GenerateRequest as VllmRequest
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.drive import Outcome, document, drive
from tests.formats.dialects import DIALECTS
from tests.formats.sglang.support import TIMINGS
from tests.formats.support import FIXTURES, HEX, View, lines, pieces, records
from tests.formats.vllm.support import VOLATILE

#: Up to this many bytes a reply is also fed one byte at a time.
BYTE_BY_BYTE = 60_000
#: Members that differ between two replies to one request.
MADE_UP = {"sglang": TIMINGS | {"id", "cached_tokens", "cached_tokens_details"}, "vllm": VOLATILE}
WORKER = View(info=WorkerInfo("any", "any", usable=True, models=("tiny",)))
Name = tuple[str, str]
RECORDS: dict[Name, dict[str, Any]] = {
    (engine, name): record
    for engine in DIALECTS
    for kind in ("generate", "control", "elsewhere")
    for name, record in records(engine, kind).items()
}
GENERATE = [(engine, name) for engine in DIALECTS for name in records(engine, "generate")]


def rows(engine: str) -> list[dict[str, str]]:
    with (FIXTURES / engine / "outcomes.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


OUTCOMES: dict[Name, dict[str, str]] = {
    (engine, row["name"]): row for engine in DIALECTS for row in rows(engine)
}


def facts_in(row: dict[str, str]) -> tuple[int, list[str], int | None, int | None]:
    prompt, error = (
        None if row[name] == "-" else int(row[name]) for name in ("prompt_tokens", "error_status")
    )
    return int(row["tokens"]), row["finish_reasons"].replace("-", "").split(), prompt, error


def parsed(name: Name) -> Any:
    record = RECORDS[name]
    headers = lines(record["request_headers"])
    return DIALECTS[name[0]].format.parse(record.get("request_body", "").encode(), headers)


def read(name: Name, parts: Iterable[bytes], kind: str = "reader") -> Outcome:
    request, format = parsed(name), DIALECTS[name[0]].format
    named = format.project(request).ids or (HEX,)
    head = ReplyHead(RECORDS[name]["status"], lines(RECORDS[name]["headers"]))
    return drive(getattr(format, kind)(request, WORKER, Ids(named, named), head), parts)


def body_of(name: Name) -> bytes:
    return str(RECORDS[name].get("body", "")).encode()


def ways(body: bytes) -> Iterable[Iterable[bytes]]:
    yield [body]
    if len(body) <= BYTE_BY_BYTE:
        yield pieces(body, None)
    for seed in range(4):
        yield pieces(body, seed)


def test_table_has_each_exchange_once() -> None:
    assert OUTCOMES.keys() == RECORDS.keys()
    assert sum(len(rows(engine)) for engine in DIALECTS) == len(OUTCOMES)
    for name, row in OUTCOMES.items():
        assert row["status"] == str(RECORDS[name].get("status", "-"))
        assert row.get("path") in (None, RECORDS[name]["path"])
        unread = Ending.ERROR_STATUS if row["status"] >= "400" else Ending.OPAQUE
        assert name in GENERATE or row["outcome"] in ("control", "elsewhere", "unanswered", unread)


@pytest.mark.parametrize("name", GENERATE, ids="/".join)
def test_recorded_exchange_has_its_outcome(name: Name) -> None:
    """The reply is relayed unchanged, however it is cut; a stream that broke off ends in an error."""
    record, row = RECORDS[name], OUTCOMES[name]
    if row["outcome"] == "another method":
        assert record["method"] not in ("POST", "PUT")
    elif row["outcome"] == "refused":
        with pytest.raises(InvalidRequest) as caught:
            parsed(name)
        assert caught.value.status == 400
    elif row["outcome"] in ("unanswered", "no reply"):
        assert "status" not in record
    else:
        for parts in ways(body_of(name)):
            _assert_outcome(read(name, parts), name)
        projection = DIALECTS[name[0]].format.project(parsed(name))
        assert parsed(name).body == record["request_body"].encode()
        if record["status"] == 200:
            assert projection.stream == (b"json" not in dict(lines(record["headers"]))[b"content-type"])
            assert projection.prompt_tokens is None or row["prompt_tokens"] in (
                "-",
                str(projection.prompt_tokens),
            )


def _assert_outcome(found: Outcome, name: Name) -> None:
    row, facts = OUTCOMES[name], found.facts
    if row["outcome"] == Ending.INCOMPLETE:
        assert found.failure is UpstreamIncomplete and found.out.startswith(body_of(name))
    else:
        assert (found.out, found.failure, facts.ending) == (body_of(name), None, row["outcome"])
        assert facts.terminal is (row["status"] == "200")
        found_facts = (facts.tokens, facts.finish_reasons, facts.prompt_tokens, facts.error_status)
        assert row["status"] != "200" or found_facts == facts_in(row)


def question(name: Name) -> str | None:
    """Return what two recordings of one request have in common; None where their replies need not agree."""
    record = RECORDS[name]
    if record.get("ended") != "complete" or "elided" in record or record["status"] == 401:
        return None
    try:
        body = json.loads(record["request_body"])
        params = dict(body.get("sampling_params") or {})
    except (KeyError, ValueError, AttributeError, TypeError):
        return None
    # A null is refused, an abort comes when it comes, and what is sampled is by chance.
    aborted = b'"type":"abort"' in body_of(name)
    if aborted or body.get("stream", False) is None or params.get("temperature", 0) != 0:
        return None
    ours = {
        key: value
        for key, value in body.items()
        if key not in ("stream", "stream_options", "rid", "request_id")
    }
    ours["sampling_params"] = {
        key: value for key, value in params.items() if key not in ("stream_interval", "output_kind")
    }
    kind = dict(record["request_headers"]).get("content-type")
    return json.dumps([name[0], record["server"], record["method"], kind, ours], sort_keys=True)


ASKED = {name: asked for name in GENERATE if (asked := question(name)) is not None}
STREAMS = [name for name in ASKED if body_of(name).startswith(b"data:")]
PAIRS = [
    (name, other)
    for name in STREAMS
    for other in ASKED
    if ASKED[other] == ASKED[name] and not json.loads(RECORDS[other]["request_body"]).get("stream")
]


@pytest.mark.parametrize(("stream", "unary"), PAIRS, ids="/".join)
def test_recorded_stream_joins_to_the_reply_without_one(stream: Name, unary: Name) -> None:
    """Status, members, values and their types, however it is cut; an error becomes the engine's own."""
    engine, reply = stream[0], RECORDS[unary]
    volatile = (
        MADE_UP[engine]
        if "request_id" in RECORDS[stream]["request_body"]
        else MADE_UP[engine] | {"request_id"}
    )
    for parts in ways(body_of(stream)):
        found = read(stream, parts, "join")
        assert (found.failure, found.facts.error_status or 200) == (None, reply["status"])
        one, other = document(found.out, volatile), document(body_of(unary), volatile)
        assert one == other
        # vLLM's unary replies have all keys in one order.
        assert engine == "sglang" or json.dumps(one) == json.dumps(other)


def test_recordings_hold_pairs_of_every_kind() -> None:
    assert {name.split("-")[0] for (engine, name), _ in PAIRS if engine == "sglang"} >= {
        "gen",
        "rust",
        "skiptok",
    }
    for engine, least in (("sglang", 14), ("vllm", 19)):
        pairs = [unary for (name, _), unary in PAIRS if name == engine]
        assert len(pairs) >= least
        assert {RECORDS[unary]["status"] for unary in pairs} == {200, 400}


SCHEMAS: dict[str, tuple[Any, Any]] = {
    "sglang": (SglangRequest, Generation),
    "vllm": (VllmRequest, GenerateReply),
}


@pytest.mark.parametrize("name", GENERATE, ids="/".join)
def test_recorded_success_fits_the_schema(name: Name) -> None:
    row, (request, reply) = OUTCOMES[name], SCHEMAS[name[0]]
    if (row["status"], row["error_status"]) == ("200", "-") and row["outcome"] != "refused":
        request.model_validate_json(RECORDS[name]["request_body"])
        if not DIALECTS[name[0]].format.project(parsed(name)).stream:
            found = json.loads(body_of(name))
            for one in found if isinstance(found, list) else [found]:
                model = reply.model_validate(one)
                assert not model.model_extra
                assert not any(choice.model_extra for choice in getattr(model, "choices", ()))
