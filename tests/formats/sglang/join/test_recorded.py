"""Joined streams of real engines are compared with their unary replies to the same requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.contract import Ids, Reader, ReplyHead
from gateway.formats.sglang import FORMAT
from tests.formats.sglang.support import TIMINGS, parsed, recorded, run, same
from tests.formats.support import HEX, View, lines, pieces

#: What the engine makes up, or has in its prefix cache by chance.
MADE_UP = TIMINGS | {"id", "cached_tokens", "cached_tokens_details"}

ALL = {
    name: record
    for name, record in recorded("generate").items()
    if "request_body" in record and record.get("ended") == "complete" and "elided" not in record
}


def asked(record: dict[str, Any]) -> tuple[str, str] | None:
    """Return the request without what concerns the form of its reply; None for a body that is no JSON or
    is sampled.
    """
    try:
        body = json.loads(record["request_body"])
    except ValueError:
        return None
    params = body.get("sampling_params", {})
    # A null or a wrong key is refused, an abort comes when it comes.
    if record["status"] == 401 or body.get("stream", False) is None or '"type":"abort"' in record["body"]:
        return None
    if not isinstance(params, dict) or params.get("temperature", 0) != 0:
        return None
    rest = {key: value for key, value in body.items() if key not in ("stream", "rid")}
    return str(record["server"]), json.dumps(rest, sort_keys=True)


def is_stream(record: dict[str, Any]) -> bool:
    return bool(json.loads(record["request_body"]).get("stream"))


KNOWN = {name: key for name, record in ALL.items() if (key := asked(record)) is not None}
UNARY = {key: name for name, key in KNOWN.items() if not is_stream(ALL[name])}
PAIRS = sorted((name, UNARY[key]) for name, key in KNOWN.items() if is_stream(ALL[name]) and key in UNARY)
STREAMS = sorted(name for name in KNOWN if is_stream(ALL[name]) and ALL[name]["status"] == 200)


def joining(record: dict[str, Any], ids: Ids | None = None) -> Reader:
    request = parsed(record["request_body"].encode(), lines(record["request_headers"]))
    head = ReplyHead(record["status"], lines(record["headers"]))
    return FORMAT.join(request, View(), ids or same(*(request.ids or (HEX,))), head)


def essence(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: essence(item) for key, item in value.items() if key not in MADE_UP}
    return [essence(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("stream", "unary"), PAIRS)
def test_stream_recorded_joins_to_the_reply_without_one(stream: str, unary: str) -> None:
    """Status, members, values and their types, whatever the frontend; an error becomes the engine's own."""
    reader = joining(ALL[stream])
    outcome = run(reader, [ALL[stream]["body"].encode()])
    assert outcome.error is None
    assert (reader.facts.error_status or ALL[stream]["status"]) == ALL[unary]["status"]
    assert essence(json.loads(outcome.given)) == essence(json.loads(ALL[unary]["body"]))


def test_recordings_hold_pairs_of_every_kind() -> None:
    """Without pairs the test above would check nothing."""
    frontends = {name.split("-")[0] for name, _ in PAIRS}
    assert frontends >= {"gen", "rust", "skiptok"}
    assert {ALL[unary]["status"] for _, unary in PAIRS} == {200, 400}
    assert len(PAIRS) >= 14


@pytest.mark.parametrize("name", STREAMS)
def test_stream_recorded_joins_to_the_same_however_it_is_cut(name: str) -> None:
    body = ALL[name]["body"].encode()
    complete = run(joining(ALL[name]), [body])
    assert complete.error is None
    for seed in range(3):
        assert run(joining(ALL[name]), pieces(body, seed)) == complete
