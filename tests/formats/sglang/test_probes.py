"""A worker is identified from its replies, whichever of them are missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.sglang import FORMAT
from gateway.formats.worker_contract import ProbeReply, WorkerInfo
from tests.formats.sglang.support import recorded

CONTROL = recorded("control")


def answer(document: Any, status: int = 200) -> ProbeReply:
    return ProbeReply(status, json.dumps(document).encode())


def recording(name: str) -> ProbeReply:
    return ProbeReply(CONTROL[name]["status"], CONTROL[name]["body"].encode())


INFO = {"version": "0.5.22", "tp_size": 1, "frontend": "python", "incremental_streaming_output": False}
LORA = {"id": "lora", "parent": "tiny"}
CARDS = answer({"object": "list", "data": [{"id": "tiny", "max_model_len": 2048}, LORA]})


def identified(**replies: ProbeReply) -> WorkerInfo:
    info = FORMAT.identify({"/" + target.replace("v1_", "v1/"): reply for target, reply in replies.items()})
    assert info is not None
    return info


def test_recorded_server_is_identified() -> None:
    info = FORMAT.identify(
        {
            "/server_info": ProbeReply(404, b""),
            "/get_server_info": recording("skiptok-meta-get_server_info"),
            "/model_info": recording("skiptok-meta-model_info"),
            "/v1/models": CARDS,
        }
    )
    assert info == WorkerInfo(
        engine="sglang",
        capability=FORMAT.capability,
        usable=True,
        version="0.5.22",
        models=("tiny", "lora"),
        context_length=2048,
        stream_mode="incremental",
        weight_version="default",
        adapters=("lora",),
    )


def test_server_is_identified_by_its_model_info_alone() -> None:
    info = identified(model_info=recording("meta-model_info"))
    assert (info.usable, info.models, info.weight_version) == (True, ("tiny",), "default")
    assert (info.version, info.stream_mode, info.context_length) == (None, None, None)


@pytest.mark.parametrize(
    ("incremental", "mode"), [(True, "incremental"), (False, "cumulative"), (None, None)]
)
def test_stream_mode_is_the_servers_option(incremental: bool | None, mode: str | None) -> None:
    assert (
        identified(server_info=answer(INFO | {"incremental_streaming_output": incremental})).stream_mode
        == mode
    )


def test_context_length_is_that_of_the_first_model_else_the_servers() -> None:
    info = answer(INFO | {"context_length": 4096, "served_model_name": "m"})
    assert identified(server_info=info, v1_models=CARDS).context_length == 2048
    found = identified(server_info=info)
    assert (found.context_length, found.models) == (4096, ("m",))


def test_model_keeps_its_name_when_its_weights_come_from_disk() -> None:
    """The server then reports their path as its name; its adapters stay its own."""
    info = answer(INFO | {"served_model_name": "tiny"})
    cards = {"data": [{"id": "/ckpt/step-1", "max_model_len": 2048}, LORA | {"parent": "/ckpt/step-1"}]}
    found = identified(
        server_info=info, model_info=answer({"served_model_name": "/ckpt/step-1"}), v1_models=answer(cards)
    )
    assert (found.models, found.context_length) == (("tiny", "lora"), 2048)


def test_cards_name_the_models_where_the_server_does_not() -> None:
    found = identified(server_info=answer({"version": "0", "tp_size": 1}), v1_models=CARDS)
    assert found.models == ("tiny", "lora")


def test_server_that_requires_a_key_is_unusable_with_that_reason() -> None:
    info = identified(
        server_info=recording("skiptok-no-auth-server_info"),
        model_info=recording("skiptok-no-auth-get_model_info"),
    )
    assert not info.usable
    assert "API key" in info.reason


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
def test_server_that_cannot_generate_alone_is_unusable(
    setting: dict[str, Any], usable: bool, word: str
) -> None:
    """One with a Rust frontend is used, with a note."""
    info = identified(server_info=answer(INFO | setting))
    assert info.usable is usable
    assert word in info.reason


@pytest.mark.parametrize(
    "replies",
    [
        {},
        {"/server_info": answer({"detail": "Not Found"}, 404)},
        {"/server_info": ProbeReply(200, b"<html>"), "/model_info": ProbeReply(200, b"[]")},
        {"/server_info": ProbeReply(200, b""), "/v1/models": CARDS},
        {"/server_info": answer({"vllm_config": "..."}), "/v1/models": CARDS},
        {"/server_info": answer({"version": "0.32.0"})},
        {"/server_info": answer({}, 403)},
        {"/v1/models": answer({}, 401)},
    ],
)
def test_other_server_is_none(replies: dict[str, ProbeReply]) -> None:
    assert FORMAT.identify(replies) is None


def test_probes_are_harmless() -> None:
    assert {probe.method for probe in (*FORMAT.probes, FORMAT.health)} == {"GET"}
    assert not any("health" in probe.target for probe in (*FORMAT.probes, FORMAT.health))
