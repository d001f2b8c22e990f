"""Every recorded generate exchange with a real engine, through the reader, in every way it can be cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.base import Reader, ReplyHead
from gateway.formats.vllm import FORMAT
from tests.formats.vllm.support import View, ids_of, lines, pieces, recorded, request

#: name -> tokens, finish reasons, prompt tokens, error status; every reply that is not here was no 200.
EXPECTED: dict[str, tuple[int, str, int | None, int | None]] = {
    "abort-by-endpoint-stream-bare-id": (300, "length", None, None),
    "abort-by-endpoint-stream-prefixed-id": (164, "abort", None, None),
    "abort-by-endpoint-unary-prefixed-id": (231, "abort", 3, None),
    "abort2-n2-unary": (517, "abort abort", 3, None),
    "dup2-id-first-stream": (250, "length", None, None),
    "dup2-id-second-unary-while-first-runs": (4, "length", 3, None),
    "err-prompt-plus-max-tokens-too-long": (48, "length", 2000, None),
    "err-stream-oov": (0, "", None, 400),
    "err-token-bool": (6, "length", 2, None),
    "gen-stream-greedy": (6, "length", None, None),
    "gen-stream-output-kind-0": (3, "length", None, None),
    "gen-stream-output-kind-1": (3, "length", None, None),
    "gen-stream-output-kind-2": (3, "length", None, None),
    "gen-stream-request-id": (2, "length", None, None),
    "gen-stream-stop-string": (24, "stop", None, None),
    "gen-stream-stop-token": (3, "stop", None, None),
    "gen-stream-stream-interval-2": (6, "length", None, None),
    "gen-stream-text-mode": (8, "length", 3, None),
    "gen-stream-text-mode-logprobs": (4, "length", None, None),
    "gen-stream-text-mode-utf8-split": (30, "length", None, None),
    "gen-stream-usage": (6, "length", 3, None),
    "gen-stream-usage-continuous": (6, "length", 3, None),
    "gen-unary-allowed-eos-stop-token-2": (1, "stop", 3, None),
    "gen-unary-bad-words": (3, "length", 3, None),
    "gen-unary-detokenize-false": (6, "length", 3, None),
    "gen-unary-empty-sampling-params-long-prompt": (8, "length", 2040, None),
    "gen-unary-greedy": (6, "length", 3, None),
    "gen-unary-logit-bias": (3, "length", 3, None),
    "gen-unary-logprob-token-ids-alone": (2, "length", 3, None),
    "gen-unary-logprobs-0": (6, "length", 3, None),
    "gen-unary-logprobs-1": (6, "length", 3, None),
    "gen-unary-logprobs-5": (6, "length", 3, None),
    "gen-unary-min-tokens": (20, "length", 3, None),
    "gen-unary-n2-sampled": (8, "length length", 3, None),
    "gen-unary-no-max-tokens-ignore-eos-off": (4, "stop", 3, None),
    "gen-unary-output-kind-0": (3, "length", 3, None),
    "gen-unary-output-kind-1": (3, "length", 3, None),
    "gen-unary-output-kind-2": (3, "length", 3, None),
    "gen-unary-prefix-cache-hit": (2, "length", 600, None),
    "gen-unary-prefix-hit-repeat": (2, "length", 600, None),
    "gen-unary-priority-0": (6, "length", 3, None),
    "gen-unary-sampled-logprobs-2": (6, "length", 3, None),
    "gen-unary-sampled-seed-repeat": (6, "length", 3, None),
    "gen-unary-structured-json": (3, "stop", 3, None),
    "gen-unary-text-mode": (6, "length", 3, None),
    "gen-unary-text-mode-logprobs": (4, "length", 3, None),
    "gen-unary-thinking-repetition": (6, "length", 3, None),
    "ok-or-err-model-empty-string": (6, "length", 3, None),
    "ok-or-err-request-id-empty": (6, "length", 3, None),
    "ok-or-err-sglang-names-in-sampling-params": (6, "length", 3, None),
    "ok-or-err-stream-string-true": (2, "length", None, None),
    "ok-or-err-token-float-integral": (6, "length", 2, None),
    "ok-or-err-token-string": (6, "length", 2, None),
    "ok-or-err-unknown-sampling-field": (6, "length", 3, None),
    "ok-or-err-unknown-top-field": (6, "length", 3, None),
    "ok-prompt-max-len-minus-1": (1, "length", 2047, None),
    "sigterm-apiserver-unary-in-flight": (104, "abort", 3, None),
    "tokens-only-eos": (1, "stop", 3, None),
    "tokens-only-logit-bias-eos": (1, "stop", 3, None),
    "tokens-only-unary": (6, "length", 3, None),
    "tokens-only-unary-logprobs-2": (3, "length", 3, None),
    "tokens-only-unary-prompt-logprobs-1": (2, "length", 3, None),
    "tokens-only-unary-stop-token": (3, "stop", 3, None),
}

#: Recorded bodies that are no JSON object: the gateway answers these itself.
NOT_JSON = {"err-body-array", "err-malformed-json", "err-malformed-json-trailing"}

ANSWERED = {name: record for name, record in recorded("generate").items() if "status" in record}
READABLE = sorted(ANSWERED.keys() - NOT_JSON)


def reader_for(record: dict[str, Any]) -> Reader:
    asked = request(record["request_body"].encode(), lines(record["request_headers"]))
    head = ReplyHead(record["status"], lines(record["headers"]))
    return FORMAT.reader(asked, View(), ids_of(asked), head)


def body_of(record: dict[str, Any]) -> bytes:
    return str(record["body"]).encode()


def test_table_names_every_success_and_nothing_else() -> None:
    """The expectations cover exactly the recorded 200s."""
    assert len(ANSWERED) > 100
    assert {name for name, record in ANSWERED.items() if record["status"] == 200} == EXPECTED.keys()


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("cut", ["one piece", "bytes", "random 1", "random 2", "random 3"])
def test_recorded_reply_passes_unchanged_however_it_is_cut(name: str, cut: str) -> None:
    """Same bytes out, the right facts and the right outcome for each recorded reply."""
    record = ANSWERED[name]
    body = body_of(record)
    seed = len(body) if cut == "bytes" and len(body) > 40_000 else None
    if cut.startswith("random"):
        seed = int(cut[-1])
    reader = reader_for(record)
    parts = [body] if cut == "one piece" else pieces(body, seed)
    out = b"".join(reader.feed(part) for part in parts)
    assert out + reader.finish() == body
    assert reader.identity
    facts = reader.facts
    tokens, reasons, prompt, error = EXPECTED.get(name, (0, "", None, None))
    assert (facts.tokens, facts.finish_reasons, facts.prompt_tokens, facts.error_status) == (
        tokens,
        reasons.split(),
        prompt,
        error,
    )
    assert facts.terminal == (name in EXPECTED)
    assert facts.cached_tokens is None


@pytest.mark.parametrize("name", READABLE)
def test_recorded_usage_agrees_with_the_tokens_counted(name: str) -> None:
    """Where the engine counted its tokens itself, the reader has the same number."""
    record = ANSWERED[name]
    if record["status"] != 200:
        return
    body = body_of(record)
    reader = reader_for(record)
    reader.feed(body)
    reader.finish()
    if body.startswith(b"data:"):
        found = [json.loads(event[6:]) for event in body.split(b"\n\n") if event.startswith(b"data: {")]
        choices = [choice for event in found for choice in event.get("choices", ())]
    else:
        choices = json.loads(body)["choices"]
        assert reader.facts.tokens == json.loads(body)["usage"]["completion_tokens"]
    assert reader.facts.tokens == sum(len(choice["token_ids"]) for choice in choices)


@pytest.mark.parametrize("name", sorted(recorded("generate").keys() - NOT_JSON))
def test_recorded_request_is_not_refused(name: str) -> None:
    """The engine's own refusals are left to the engine, so that its words reach the client."""
    record = recorded("generate")[name]
    asked = request(record["request_body"].encode(), lines(record["request_headers"]))
    assert asked.body == record["request_body"].encode()
    if record.get("status") == 200:
        assert asked.stream == str(record["body"]).startswith("data:")
        prompt = EXPECTED[name][2]
        assert prompt is None or prompt == asked.prompt_tokens


@pytest.mark.parametrize("name", sorted(NOT_JSON))
def test_recorded_body_that_is_no_object_is_refused(name: str) -> None:
    """What the engine could not read either is answered here, with its status."""
    record = ANSWERED[name]
    with pytest.raises(InvalidRequest) as caught:
        request(record["request_body"].encode())
    assert caught.value.status == record["status"]


def test_recorded_control_replies_identify_the_engine() -> None:
    """The recorded answers to the probes are those of a usable worker."""
    control = recorded("control")
    models = control["meta-v1-models"]
    assert json.loads(models["body"])["data"][0]["owned_by"] == "vllm"
    assert models["status"] == 200
    assert json.loads(control["meta-version"]["body"]) == {"version": "0.32.0"}
