"""A worker is identified from its replies to the probes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.vllm import FORMAT
from gateway.formats.worker_contract import ProbeReply, WorkerInfo
from tests.formats.vllm.support import recorded

GENERATE = "/inference/v1/generate"
REFUSAL = {
    "error": {
        "message": "2 validation errors:\n  {'type': 'missing', 'loc': 'body.token_ids'}",
        "type": "Bad Request",
        "param": "body.token_ids",
        "code": 400,
    }
}
SCALE_OUT = {"error": {"message": "Scale-out endpoints are disabled. Restart ...", "code": 403}}
UNAUTHORIZED = {"error": "Unauthorized"}
NOT_FOUND = {"detail": "Not Found"}


def models(owner: str = "vllm", length: Any = 2048) -> dict[str, Any]:
    base = {"id": "tiny", "owned_by": owner, "max_model_len": length}
    return {"object": "list", "data": [base, {"id": "adapter", "owned_by": owner, "max_model_len": None}]}


def identify(version: Any, listed: Any, generate: Any) -> WorkerInfo | None:
    """Each argument a (status, JSON) pair, or None for no answer."""
    answers = {"/version": version, "/v1/models": listed, GENERATE: generate}
    return FORMAT.identify(
        {
            path: ProbeReply(answer[0], json.dumps(answer[1]).encode())
            for path, answer in answers.items()
            if answer is not None
        }
    )


def test_questions_generate_nothing_on_an_engine() -> None:
    """The generate route is asked with an empty object, which the engine refuses before any work."""
    asked = {probe.target: probe for probe in FORMAT.probes}
    assert asked[GENERATE].method == "POST"
    assert json.loads(asked[GENERATE].body or b"") == {}
    assert {probe.method for path, probe in asked.items() if path != GENERATE} == {"GET"}
    assert (FORMAT.health.method, FORMAT.health.target) == ("GET", "/health")


def test_recorded_engine_is_usable() -> None:
    control = recorded("control")
    refusal = recorded("generate")["err-missing-token-ids"]
    found = FORMAT.identify(
        {
            "/version": ProbeReply(200, control["meta-version"]["body"].encode()),
            "/v1/models": ProbeReply(200, control["meta-v1-models"]["body"].encode()),
            GENERATE: ProbeReply(refusal["status"], refusal["body"].encode()),
        }
    )
    assert found == WorkerInfo(
        engine="vllm",
        capability=FORMAT.capability,
        usable=True,
        version="0.32.0",
        models=("tiny",),
        context_length=2048,
        stream_mode="delta",
    )


@pytest.mark.parametrize(
    ("version", "listed", "generate", "word"),
    [
        (None, None, (403, SCALE_OUT), "--enable-scale-out"),
        ((200, {"version": "1"}), (401, UNAUTHORIZED), (401, UNAUTHORIZED), "API key"),
        ((200, {"version": "1"}), (200, models()), (404, NOT_FOUND), "too old"),
        ((200, {"version": "1"}), (200, models()), (501, {}), "does not generate"),
        ((200, {"version": "1"}), (200, models()), (500, {}), "answered 500"),
        ((200, {"version": "1"}), (200, models()), (200, {}), "answered 200"),
        ((200, {"version": "1"}), (200, models()), None, "did not answer"),
        (None, (200, models()), None, "did not answer"),
    ],
)
def test_engine_that_cannot_serve_is_listed_with_its_reason(
    version: Any, listed: Any, generate: Any, word: str
) -> None:
    found = identify(version, listed, generate)
    assert found is not None
    assert not found.usable
    assert word in found.reason


@pytest.mark.parametrize(
    ("version", "listed", "generate"),
    [
        (None, None, None),
        ((404, NOT_FOUND), (200, models("sglang")), (404, NOT_FOUND)),
        ((401, UNAUTHORIZED), (401, UNAUTHORIZED), (401, UNAUTHORIZED)),
        ((200, {"version": "1"}), (404, NOT_FOUND), (404, NOT_FOUND)),
        ((200, {"version": "1"}), (200, models("sglang")), (404, NOT_FOUND)),
        ((404, {}), (200, models("someone")), (400, {"error": "no"})),
        ((404, {}), (404, {}), (200, {"choices": "no"})),
        ((200, {"version": 7}), (200, {"data": 7}), (400, {})),
    ],
)
def test_other_server_is_not_taken_for_this_engine(version: Any, listed: Any, generate: Any) -> None:
    assert identify(version, listed, generate) is None


@pytest.mark.parametrize(
    "generate", [(200, {"choices": [], "request_id": "x"}), (400, REFUSAL), (422, REFUSAL)]
)
def test_any_server_whose_route_speaks_the_dialect_is_used(generate: Any) -> None:
    found = identify((404, NOT_FOUND), (200, models("sglang")), generate)
    assert found is not None
    assert (found.usable, found.engine, found.version) == (True, "vllm-compatible", None)


def test_adapters_are_distinguished_from_base_models() -> None:
    """The engine names an adapter's base as its parent; other names of the base have none."""
    cards = [
        {"id": "base", "owned_by": "vllm", "parent": None, "max_model_len": 2048},
        {"id": "alias", "owned_by": "vllm", "parent": None},
        {"id": "tuned", "owned_by": "vllm", "parent": "base"},
        {"id": 7, "owned_by": "vllm", "parent": "base"},
    ]
    models = ProbeReply(200, json.dumps({"object": "list", "data": cards}).encode())
    found = FORMAT.identify({"/v1/models": models, "/inference/v1/generate": ProbeReply(400, b"{}")})
    assert found is not None
    assert (found.models, found.adapters) == (("base", "alias", "tuned"), ("tuned",))
    assert found.context_length == 2048


@pytest.mark.parametrize(
    ("paused", "sleeping", "says"),
    [(None, None, False), (False, False, False), (True, False, True), (False, True, True), ("yes", 1, False)],
)
def test_paused_or_sleeping_engine_is_reported_in_development_mode(
    paused: object, sleeping: object, says: bool
) -> None:
    """It is usable nevertheless: its requests wait."""
    replies = {
        "/version": ProbeReply(200, b'{"version":"0.33.0"}'),
        GENERATE: ProbeReply(400, json.dumps(REFUSAL).encode()),
    }
    if paused is not None:
        replies["/is_paused"] = ProbeReply(200, json.dumps({"is_paused": paused}).encode())
        replies["/is_sleeping"] = ProbeReply(200, json.dumps({"is_sleeping": sleeping}).encode())
    info = FORMAT.identify(replies)
    assert info is not None
    assert (info.usable, info.paused) == (True, says)
