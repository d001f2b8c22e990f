"""The simulated engines answer recorded requests as the real ones did: status, headers, errors, key order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.sim import SimConfig, SimServer
from tests.sim.client import Answer, ask
from tests.sim.shapes import shape

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: What needs a second request, a signal or another frontend.
NOT_ALONE = ("rust", "abort", "dup", "sig", "pause", "loads", "skiptok-sig", "skiptok-abort", "skiptok-loads")
LEFT_OUT = {
    "gen-unary-regex-constrained",  # a grammar
    "gen-unary-structured-json",
    "err-invalid-utf8",  # the recording's own request is not what was sent
}
#: Their text holds a path of the engine's own files, or a decoder's own words.
WORDED_BY_OTHERS = ("validation error", "JSON decode error")
#: The engines tell more of themselves than anybody needs; what is told must be spelt and ordered alike.
INFORMATION = ("model_info", "get_model_info", "get_server_info")


def rows(kind: str) -> list[Any]:
    found = []
    for name in ("generate", "control"):
        for line in (FIXTURES / kind / f"{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            complete = row["ended"] == "complete" and "body_elided" not in row
            if complete and not row["name"].startswith(NOT_ALONE) and row["name"] not in LEFT_OUT:
                found.append(pytest.param(kind, row, id=f"{kind}-{row['name']}"))
    return found


def config(server: str) -> SimConfig:
    """The flags a recorded server was started with, as far as they matter here."""
    skip = "--skip-tokenizer-init" in server or "--tokens-only" in server
    return SimConfig(
        model="tiny",
        max_model_len=2048,
        vocab_size=512,
        api_key="sekret" if "--api-key" in server else None,
        skip_tokenizer=skip,
        incremental_streaming_output="--incremental-streaming-output" in server,
        enable_metrics="--enable-metrics" in server,
        enable_scale_out="--enable-scale-out" in server or "--tokens-only" in server,
        fast_health=True,
        dev_mode=False,
    )


@pytest.mark.parametrize(("kind", "row"), rows("sglang") + rows("vllm"))
async def test_recorded_request_is_answered_as_by_the_engine(kind: str, row: dict[str, Any]) -> None:
    """Same status, same header lines, same error, same keys in the same order."""
    async with SimServer(kind, config(row["server"])) as sim:
        answer = await ask(
            sim.port,
            row["path"],
            row["request_body"].encode() if row.get("request_body") is not None else None,
            method=row["method"],
            headers=row["request_headers"],
        )
    assert answer.status == row["status"]
    assert sorted(name.lower() for name, _ in answer.headers) == sorted(
        name.lower() for name, _ in row["headers"]
    )
    if row["headers"] and "text/event-stream" in answer.content_type:
        _same_events(row["body"], answer)
    elif row["name"].endswith(INFORMATION):
        own = [key for key in answer.json if key != "structural_tag"]
        assert [key for key in json.loads(row["body"]) if key in own] == own
    elif row["body"].startswith(("{", "[")):
        _same_object(json.loads(row["body"]), answer)
    else:
        assert answer.body.decode() == row["body"]


def _same_object(recorded: Any, answer: Answer) -> None:
    own = answer.json
    if answer.status == 200 or any(words in str(recorded) for words in WORDED_BY_OTHERS):
        assert shape(own) == shape(recorded)
    else:
        assert own == recorded


def _same_events(recorded: str, answer: Answer) -> None:
    theirs = [event.removeprefix("data: ") for event in recorded.split("\n\n")]
    own = [event.removeprefix("data: ") for event in answer.body.decode().split("\n\n")]
    assert own[-2:] == theirs[-2:] == ["[DONE]", ""]
    assert shape(json.loads(own[0])) == shape(json.loads(theirs[0]))
    last = -4 if '"choices":[]' in theirs[-3] else -3
    assert shape(json.loads(own[last])) == shape(json.loads(theirs[last]))
    assert shape(json.loads(own[-3])) == shape(json.loads(theirs[-3]))
    if "error" in theirs[0]:
        assert own == theirs
