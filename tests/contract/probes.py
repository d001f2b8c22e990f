"""The answers of usable engines to the probes of their formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.formats.worker_contract import ProbeReply


def _answer(document: Any, status: int = 200) -> ProbeReply:
    return ProbeReply(status, json.dumps(document).encode())


SGLANG: Mapping[str, ProbeReply] = {
    "/server_info": _answer(
        {"model_path": "tiny", "version": "0.5.22", "tp_size": 1, "incremental_streaming_output": False}
    ),
    "/v1/models": _answer({"object": "list", "data": [{"id": "tiny", "max_model_len": 2048}]}),
}
TRTLLM: Mapping[str, ProbeReply] = {
    "/version": _answer({"version": "1.2.1"}),
    "/v1/models": _answer({"object": "list", "data": [{"id": "tiny", "owned_by": "tensorrt_llm"}]}),
    "/server_info": _answer({"disaggregated_params": {}}),
}
VLLM: Mapping[str, ProbeReply] = {
    "/version": _answer({"version": "0.33.0"}),
    "/v1/models": _answer(
        {"object": "list", "data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 2048}]}
    ),
    "/inference/v1/generate": _answer({"error": {"message": "token_ids is missing", "code": 400}}, 400),
}
