"""A worker is identified from its replies, whichever of them are missing; some tell its load and health."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import pytest

from gateway.cards.token_budget import TokenBudget
from gateway.cards.values import CardValues
from gateway.formats.optional import WorkerHealth, WorkerLoad
from gateway.formats.sglang.load import GET_LOAD, LOADS
from gateway.formats.vllm.load import LOAD, METRICS
from gateway.formats.worker_contract import ProbeReply, WorkerInfo
from tests.formats.dialects import DIALECTS
from tests.formats.support import records

SGLANG, VLLM = (dialect.format for dialect in DIALECTS.values())
GENERATE = "/inference/v1/generate"
#: Status and document.
Answer = tuple[int, Any]


def replies(answers: Mapping[str, Answer | bytes | None]) -> dict[str, ProbeReply]:
    """Return the replies of a server; None for no answer, bytes for the document of a 200."""
    return {
        path: ProbeReply(200, answer)
        if isinstance(answer, bytes)
        else ProbeReply(answer[0], json.dumps(answer[1]).encode())
        for path, answer in answers.items()
        if answer is not None
    }


def recording(engine: str, kind: str, name: str) -> Answer:
    record = records(engine, kind)[name]
    return record["status"], json.loads(record["body"])


def sglang(**answers: Answer) -> WorkerInfo:
    info = SGLANG.identify(
        replies({"/" + target.replace("v1_", "v1/"): answer for target, answer in answers.items()})
    )
    assert isinstance(info, WorkerInfo)
    return info


INFO = {"version": "0.5.22", "tp_size": 1, "frontend": "python", "incremental_streaming_output": False}
LORA = {"id": "lora", "parent": "tiny"}
CARDS = (200, {"object": "list", "data": [{"id": "tiny", "max_model_len": 2048}, LORA]})


def test_recorded_server_of_sglang_is_identified() -> None:
    info = sglang(
        server_info=(404, ""),
        get_server_info=recording("sglang", "control", "skiptok-meta-get_server_info"),
        model_info=recording("sglang", "control", "skiptok-meta-model_info"),
        v1_models=CARDS,
    )
    assert info == WorkerInfo(
        engine="sglang",
        capability=SGLANG.capability,
        usable=True,
        version="0.5.22",
        models=("tiny", "lora"),
        stream_mode="incremental",
        adapters=("lora",),
        launch="kv_cache_allocation=0.4155501500001719 load_weight=0.01850343299997803"
        " scheduler_e2e=1.304029184000001 tokenizer_e2e=8.230901236999898",
        card=CardValues(
            capabilities=("sglang_generate",),
            worker_type="regular",
            context_length=2048,
            kv_cache_block_size=1,
            total_kv_blocks=16384,
            max_num_seqs=16,
            max_num_batched_tokens=16384,
            data_parallel_size=1,
            weight_version="default",
            enable_eagle=False,
            kv_event_publishing_enabled=False,
            token_budget=TokenBudget(2048, True, True),
        ),
        model_path="/srv/tinymodel",
    )


@pytest.mark.parametrize(
    "durations", [None, 1.5, {}, {"a": 0.0, "b": 2.0, "c": 0.125}, {"a": "0.1", "b": [0.3]}]
)
def test_launch_that_several_engines_could_report_is_not_known(durations: object) -> None:
    assert sglang(server_info=(200, {**INFO, "startup_time": durations})).launch is None


META = recording("sglang", "control", "meta-model_info")
LENGTH: Answer = (200, INFO | {"context_length": 4096, "served_model_name": "m"})
DISK = {"data": [{"id": "/ckpt/step-1", "max_model_len": 2048}, LORA | {"parent": "/ckpt/step-1"}]}


@pytest.mark.parametrize(
    ("answers", "names", "values"),
    [
        (
            {"model_info": META},
            "models card.weight_version version stream_mode",
            (("tiny",), "default", None, None),
        ),
        *(
            ({"server_info": (200, INFO | {"incremental_streaming_output": flag})}, "stream_mode", (mode,))
            for flag, mode in ((True, "incremental"), (False, "cumulative"), (None, None))
        ),
        # The context length is that of the first model, else the server's.
        ({"server_info": LENGTH, "v1_models": CARDS}, "card.context_length", (2048,)),
        ({"server_info": LENGTH}, "card.context_length models", (4096, ("m",))),
        # With weights from disk the server reports their path as its name; its adapters stay its own.
        (
            {
                "server_info": (200, INFO | {"served_model_name": "tiny"}),
                "model_info": (200, {"served_model_name": "/ckpt/step-1"}),
                "v1_models": (200, DISK),
            },
            "models card.context_length",
            (("tiny", "lora"), 2048),
        ),
        (
            {"server_info": (200, {"version": "0", "tp_size": 1}), "v1_models": CARDS},
            "models",
            (("tiny", "lora"),),
        ),
    ],
)
def test_what_a_server_of_sglang_leaves_out_is_taken_from_where_it_is(
    answers: dict[str, Answer], names: str, values: tuple[Any, ...]
) -> None:
    info = sglang(**answers)
    assert info.usable and tuple(attrgetter(name)(info) for name in names.split()) == values


@pytest.mark.parametrize(
    ("setting", "usable", "word"),
    [
        ({"disaggregation_mode": "prefill"}, False, "prefill"),
        ({"disaggregation_mode": "decode"}, False, "decode"),
        ({"disaggregation_mode": "null"}, True, ""),
        ({"is_embedding": True}, False, "embedding"),
        ({"frontend": "rust"}, True, "Rust"),
    ],
)
def test_server_of_sglang_that_cannot_generate_alone_is_unusable(
    setting: dict[str, Any], usable: bool, word: str
) -> None:
    """One with a Rust frontend is used, with a note."""
    info = sglang(server_info=(200, INFO | setting))
    assert (info.usable, word in info.reason) == (usable, True)
    refused = [
        recording("sglang", "control", f"skiptok-no-auth-{name}")
        for name in ("server_info", "get_model_info")
    ]
    info = sglang(server_info=refused[0], model_info=refused[1])
    assert (info.usable, "API key" in info.reason) == (False, True)


REFUSAL = {"error": {"message": "2 validation errors", "type": "Bad Request", "param": "body.token_ids"}}
SCALE_OUT = {"error": {"message": "Scale-out endpoints are disabled. Restart ...", "code": 403}}
UNAUTHORIZED: Answer = (401, {"error": "Unauthorized"})
NOT_FOUND: Answer = (404, {"detail": "Not Found"})
VERSION: Answer = (200, {"version": "1"})


def cards(owner: str = "vllm") -> Answer:
    """Return an engine's models: other names of the base have no parent, adapters have the base."""
    base = {"id": "base", "owned_by": owner, "parent": None, "max_model_len": 2048}
    others: tuple[tuple[Any, Any], ...] = (("alias", None), ("tuned", "base"), (7, "base"))
    data = [base, *({"id": id, "owned_by": owner, "parent": parent} for id, parent in others)]
    return 200, {"object": "list", "data": data}


def vllm(version: Answer | None, listed: Answer | None, generate: Answer | None) -> WorkerInfo | None:
    answers = {"/version": version, "/v1/models": listed, GENERATE: generate}
    info: WorkerInfo | None = VLLM.identify(replies(answers))
    return info


def test_recorded_engine_of_vllm_is_identified() -> None:
    found = vllm(
        recording("vllm", "control", "meta-version"),
        recording("vllm", "control", "meta-v1-models"),
        recording("vllm", "generate", "err-missing-token-ids"),
    )
    assert found == WorkerInfo(
        engine="vllm",
        capability=VLLM.capability,
        usable=True,
        version="0.32.0",
        models=("tiny",),
        stream_mode="delta",
        card=CardValues(
            capabilities=("vllm_inference_v1_generate",),
            context_length=2048,
            token_budget=TokenBudget(2048, True, True),
        ),
        model_path="/srv/tinymodel",
    )


def test_adapters_of_vllm_are_distinguished_from_base_models() -> None:
    found = vllm(None, cards(), (400, {}))
    assert found is not None
    assert (found.models, found.adapters) == (("base", "alias", "tuned"), ("tuned",))
    assert found.card.context_length == 2048


@pytest.mark.parametrize(
    ("version", "listed", "generate", "word"),
    [
        (None, None, (403, SCALE_OUT), "--enable-scale-out"),
        (VERSION, UNAUTHORIZED, UNAUTHORIZED, "API key"),
        (VERSION, cards(), NOT_FOUND, "too old"),
        (VERSION, cards(), (501, {}), "does not generate"),
        (VERSION, cards(), (500, {}), "answered 500"),
        (VERSION, cards(), (200, {}), "answered 200"),
        (VERSION, cards(), None, "did not answer"),
        (None, cards(), None, "did not answer"),
    ],
)
def test_engine_of_vllm_that_cannot_serve_is_listed_with_its_reason(
    version: Answer | None, listed: Answer | None, generate: Answer | None, word: str
) -> None:
    found = vllm(version, listed, generate)
    assert found is not None
    assert not found.usable and word in found.reason


@pytest.mark.parametrize(
    "generate", [(200, {"choices": [], "request_id": "x"}), (400, REFUSAL), (422, REFUSAL)]
)
def test_any_server_whose_route_speaks_the_dialect_of_vllm_is_used(generate: Answer) -> None:
    found = vllm(NOT_FOUND, cards("sglang"), generate)
    assert found is not None
    assert (found.usable, found.engine, found.version) == (True, "vllm-compatible", None)


@pytest.mark.parametrize(
    ("paused", "sleeping", "says"),
    [(None, None, False), (False, False, False), (True, False, True), (False, True, True), ("yes", 1, False)],
)
def test_paused_or_sleeping_engine_of_vllm_is_reported_in_development_mode(
    paused: object, sleeping: object, says: bool
) -> None:
    """It is usable nevertheless: its requests wait."""
    answers: dict[str, Answer] = {"/version": VERSION, GENERATE: (400, REFUSAL)}
    if paused is not None:
        answers["/is_paused"] = (200, {"is_paused": paused})
        answers["/is_sleeping"] = (200, {"is_sleeping": sleeping})
    info = VLLM.identify(replies(answers))
    assert info is not None
    assert (info.usable, info.paused) == (True, says)


@pytest.mark.parametrize(
    ("format", "answers"),
    [
        (SGLANG, {"/server_info": NOT_FOUND}),
        (SGLANG, {"/server_info": b"<html>", "/model_info": (200, [])}),
        (SGLANG, {"/server_info": b"", "/v1/models": CARDS}),
        (SGLANG, {"/server_info": (200, {"vllm_config": "..."}), "/v1/models": CARDS}),
        (SGLANG, {"/server_info": (200, {"version": "0.32.0"})}),
        (SGLANG, {"/server_info": (403, {})}),
        (SGLANG, {"/v1/models": (401, {})}),
        (VLLM, {"/version": NOT_FOUND, "/v1/models": cards("sglang"), GENERATE: NOT_FOUND}),
        (VLLM, {"/version": UNAUTHORIZED, "/v1/models": UNAUTHORIZED, GENERATE: UNAUTHORIZED}),
        (VLLM, {"/version": VERSION}),
        (VLLM, {"/version": VERSION, "/v1/models": NOT_FOUND, GENERATE: NOT_FOUND}),
        (VLLM, {"/version": VERSION, "/v1/models": cards("sglang"), GENERATE: NOT_FOUND}),
        (VLLM, {"/version": (404, {}), "/v1/models": cards("someone"), GENERATE: (400, {"error": "no"})}),
        (VLLM, {"/version": (404, {}), "/v1/models": (404, {}), GENERATE: (200, {"choices": "no"})}),
        (VLLM, {"/version": (200, {"version": 7}), "/v1/models": (200, {"data": 7}), GENERATE: (400, {})}),
    ],
)
def test_other_server_is_not_taken_for_one_of_the_engine(
    format: Any, answers: dict[str, Answer | bytes]
) -> None:
    assert format.identify(replies(answers)) is None


def test_probes_are_harmless() -> None:
    """vLLM's generate route is asked with an empty object, which the engine refuses before any work."""
    assert not any("health" in probe.target for probe in (*SGLANG.probes, SGLANG.health))
    assert (VLLM.health.method, VLLM.health.target) == ("GET", "/health")
    asked = [(probe.method, probe.target, probe.body) for probe in VLLM.probes]
    assert ("POST", GENERATE, b"{}") in asked
    gets = {
        probe.method for probe in (*SGLANG.probes, SGLANG.health, *VLLM.probes) if probe.target != GENERATE
    }
    assert gets == {"GET"}


def rank(running: int, waiting: int, usage: Any = 0.5) -> dict[str, Any]:
    return {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting, "token_usage": usage}


NOTHING: list[Any] = [{}, {"loads": []}, {"loads": [{}]}, [], None]
UNTRACKED: list[Any] = [{"server_load": 0}, {"server_load": -1}, [], b"\xff"]
#: Counts of a build before ``LOADS``: those that wait are counted twice.
BEFORE = [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 9}]
#: Other rows with a similar name are ignored.
TEXT = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b} 9"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="1"} 70.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.125
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 2.5e-1
"""


@pytest.mark.parametrize(
    ("format", "question", "body", "load"),
    [
        (SGLANG, LOADS, {"loads": [rank(2, 1, 0.25), rank(3, 0, 0.75)]}, WorkerLoad(5, 1, 0.75)),
        (SGLANG, LOADS, {"loads": [rank(2, 1, None)]}, WorkerLoad(2, 1, None)),
        (SGLANG, GET_LOAD, BEFORE, WorkerLoad(3, 2)),
        *((SGLANG, LOADS, body, None) for body in NOTHING),
        (SGLANG, LOADS, {"loads": [rank(-1, 0)]}, None),
        (SGLANG, GET_LOAD, [], None),
        (VLLM, METRICS, TEXT, WorkerLoad(5, 5, 0.25)),
        (VLLM, METRICS, b"", None),
        (VLLM, METRICS, b"vllm:num_requests_waiting{} 1.0\n", None),
        *(
            (VLLM, METRICS, b"vllm:num_requests_running{} %b\n" % odd, None)
            for odd in (b"NaN", b"1e999", b"1-2", b"-1")
        ),
        # It stays at 0 on a server that does not track.
        (VLLM, LOAD, {"server_load": 3}, WorkerLoad(3, 0)),
        *((VLLM, LOAD, body, None) for body in UNTRACKED),
    ],
)
def test_load_is_the_sum_of_what_the_server_tells(
    format: Any, question: Any, body: Any, load: WorkerLoad | None
) -> None:
    """A 404 does not tell it."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert format.read_load(question, ProbeReply(200, text)) == load
    assert format.read_load(question, ProbeReply(404, text)) is None


@pytest.mark.parametrize(
    ("format", "status", "health"),
    [
        (SGLANG, 200, WorkerHealth.GOOD),
        (SGLANG, 404, WorkerHealth.GOOD),
        (SGLANG, 503, WorkerHealth.BUSY),
        (SGLANG, 500, WorkerHealth.BAD),
        (SGLANG, 401, WorkerHealth.BAD),
        (VLLM, 503, WorkerHealth.BAD),
    ],
)
def test_answer_to_the_health_question(format: Any, status: int, health: WorkerHealth) -> None:
    """503 is a paused server of SGLang, which is alive, and a crashed core of vLLM."""
    assert format.read_health(ProbeReply(status, b"")) is health
