"""Control calls of both engines, valid and invalid ones, in an order that leaves an engine unchanged.

Owns: the calls. Must never enter: the callee, the expected replies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx

from scripts.engines import paths

JSON = "application/json"


@dataclass(frozen=True)
class Call:
    method: str
    target: str
    body: str | None = None
    content_type: str | None = JSON

    def __str__(self) -> str:
        request = "" if self.body is None else f" {self.body or 'nothing'}"
        return f"{self.method} {self.target}{request}{'' if self.content_type == JSON else ' untyped'}"

    async def answer(self, client: httpx.AsyncClient, url: str) -> httpx.Response:
        headers = {"connection": "close"}  # an engine closes a connection after an error
        if self.body is not None and self.content_type is not None:
            headers["content-type"] = self.content_type
        return await client.request(self.method, url + self.target, content=self.body, headers=headers)


def get(*targets: str) -> list[Call]:
    return [Call("GET", target) for target in targets]


def post(target: str, *bodies: str) -> list[Call]:
    """Return calls of one route, with each of ``bodies`` or once without a body."""
    return [Call("POST", target, body) for body in bodies] or [Call("POST", target)]


LORA = '{"lora_name": "a", "lora_path": "/nowhere"}'
SGLANG = [
    *get("/", "/ready", "/ping", "/health", "/get_weight_version", "/weight_version", "/get_load"),
    *get("/nowhere", "/metrics", "/abort_request", "/pause_generation", "/generate"),
    *get("/v1/loads?include=nothing", "/v1/loads?dp_rank=7", "/v1/loads?dp_rank=x"),
    *post("/abort_request", '{"rid": "nobody"}', '{"abort_all": true}', "{}", '{"rid": null}', '{"rid": ""}'),
    *post(
        "/abort_request", "", "no JSON", "[1]", '{"rid": 5}', '{"rid": ["a", "b"]}', '{"rid": "x", "y": 1}'
    ),
    *post("/abort_request", '{"abort_all": "yes"}', '{"abort_all": "perhaps"}'),
    Call("POST", "/abort_request", '{"rid": "x"}', None),
    *get("/flush_cache"),
    *post("/flush_cache"),
    *post("/flush_cache?timeout=2", "{}"),
    *post("/flush_cache?timeout=x"),
    Call("PUT", "/flush_cache"),
    *post("/pause_generation", '{"mode": "abort"}', "{}", '{"mode": "retract"}', '{"mode": "in_place"}'),
    *get("/ready"),
    *post("/flush_cache"),
    *post("/pause_generation", "", "no JSON", '{"mode": "nothing"}', '{"mode": 5}'),
    Call("POST", "/pause_generation", "{}", None),
    *post("/continue_generation", "", "no JSON", "[]", '{"torch_empty_cache": 7}', "{}", "{}"),
    *post("/release_memory_occupation", '{"tags": ["kv_cache"]}', "{}", "", '{"tags": "kv_cache"}'),
    # Memory that is not released must not be resumed, or the engine ends.
    *post("/resume_memory_occupation", '{"tags": ["weights"]}', '{"tags": ["kv_cache", "cuda_graph"]}', ""),
    *get("/release_memory_occupation", "/resume_memory_occupation"),
    *post(
        "/update_weight_version", '{"new_version": "7"}', '{"new_version": "8", "abort_all_requests": false}'
    ),
    *get("/server_info", "/v1/models"),
    *post("/update_weight_version", '{"new_version": 9}', "{}", "", "no JSON"),
    *post("/update_weight_version", '{"new_version": "9", "abort_all_requests": "perhaps"}'),
    *post("/update_weights_from_disk", "{}", "", "no JSON", '{"model_path": 5}'),
    *post("/update_weights_from_disk", json.dumps({"model_path": str(paths.model())})),
    *post(
        "/update_weights_from_disk", json.dumps({"model_path": str(paths.model()), "weight_version": "41"})
    ),
    *get("/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/models"),
    *post("/update_weight_version", '{"new_version": "default"}'),
    *post("/load_lora_adapter", LORA, "{}", ""),
    *post("/unload_lora_adapter", '{"lora_name": "a"}', "{}"),
    *post("/destroy_weights_update_group", "{}", '{"group_name": "nobody\'s"}'),
    *post("/init_weights_update_group", "{}", '{"master_address": "a", "master_port": "x"}'),
    *post("/update_weights_from_distributed", "{}"),
    *post("/update_weights_from_tensor", "{}"),
    *post("/update_weights_from_ipc", "{}"),
    Call("DELETE", "/generate"),
]
ABORTS = "/inference/v1/abort_requests"
VLLM = [
    *get("/health", "/ping", "/load", "/load?include_inflight=true", "/kv_event_sources", "/v1/models"),
    *get("/nowhere", "/skyrl/v1/generate", "/pause", ABORTS, "/get_world_size"),
    *post("/ping"),
    *get("/server_info", "/server_info?config_format=json", "/server_info?config_format=other"),
    *post(ABORTS, '{"request_ids": ["x"]}', '{"request_ids": []}', '{"request_ids": "x"}'),
    *post(ABORTS, '{"request_ids": [1]}', '{"request_ids": 5}', '{"request_ids": null}', "{}", ""),
    *post(ABORTS, "no JSON", "[1]", '"x"'),
    Call("POST", ABORTS, '{"request_ids": ["x"]}', None),
    *post("/abort_requests", "{}", '{"request_ids": ["x", "y"]}', '{"request_ids": []}'),
    *post("/abort_requests", "", "no JSON", "[]"),
    *get("/is_paused"),
    *post("/pause"),
    *get("/is_paused", "/health"),
    *post("/resume"),
    *post("/resume"),
    *post("/pause?mode=keep", "{}"),
    *get("/is_paused"),
    *post("/resume", "{}"),
    *post("/pause?mode=wait&clear_cache=false"),
    *post("/resume"),
    *post("/pause?mode=other"),
    *post("/pause?mode=abort&clear_cache=perhaps"),
    *get("/is_paused", "/is_sleeping"),
    *post("/sleep?level=0"),
    *get("/is_sleeping", "/is_paused"),
    *post("/wake_up?tags=scheduling"),
    *get("/is_sleeping"),
    *post("/sleep"),
    *post("/wake_up?tags=weights"),
    *get("/is_sleeping", "/is_paused"),
    *post("/wake_up?tags=kv_cache"),
    *get("/is_sleeping", "/is_paused"),
    *post("/sleep?level=2"),
    *post("/wake_up?tags=weights&tags=kv_cache"),
    *get("/is_sleeping"),
    *post("/pause"),
    *get("/is_sleeping"),
    *post("/wake_up"),
    *get("/is_paused"),
    *post("/resume"),
    *post("/sleep?level=x"),
    *post("/sleep?level=9"),
    *post("/sleep?level=-1"),
    *post("/sleep?mode=other"),
    *post("/reset_prefix_cache", "", "{}"),
    *post("/reset_prefix_cache?reset_running_requests=true"),
    *post("/reset_prefix_cache?reset_running_requests=x"),
    *post("/reset_mm_cache"),
    *post("/reset_encoder_cache"),
    *post("/release_kv_cache_memory"),
    *post("/update_weight_version", '{"new_version": "7"}'),
    *get("/weight_info"),
    *post("/update_weight_version", '{"new_version": 7}', "{}", "", "no JSON", '{"weight_version": "8"}'),
    *post("/init_weight_transfer_engine", "{}", "no JSON"),
    *post("/update_weights", "{}"),
    *post("/shutdown_weight_transfer_engine", "{}"),
    *post("/load_lora_adapter", LORA),
    *post("/v1/load_lora_adapter", LORA),
    *post("/update_weight_version", '{"new_version": "default"}'),
    Call("DELETE", "/inference/v1/generate"),
]
