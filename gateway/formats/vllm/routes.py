"""The routes of vLLM's engines (vLLM 0.33.0).

Owns: their paths, methods and recipients. Must never enter: what a call contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.formats.routes import SHARED_APIS, ControlCall, Recipients, Routes, calls

#: Settings of the gateway that are options of this format: field name to option.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "passthrough_engine_errors": "passthrough_engine_errors",
        "vocab_size": "vocab_size",
        "event_limit_mb": "event_limit",
    }
)

#: The setting of the gateway that switches the generate endpoint.
SWITCH = "vllm_enable_inference_v1_generate"

_GET = ("GET",)

ROUTES = Routes(
    path="/inference/v1/generate",
    aborts=("/inference/v1/abort_requests", "/abort_requests"),
    control=(
        ControlCall("/pause", pauses="generation"),
        ControlCall("/resume", resumes="generation"),
        ControlCall("/sleep", pauses="memory"),
        ControlCall("/wake_up", resumes="memory"),
        ControlCall("/is_paused", _GET),
        ControlCall("/is_sleeping", _GET),
        *calls(Recipients.ALL, "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
        *calls(Recipients.ALL, "/release_kv_cache_memory", "/shutdown_weight_transfer_engine"),
        *calls(Recipients.ALL, "/v1/load_lora_adapter", "/v1/unload_lora_adapter", changes=True),
        # Not vLLM's own: training frameworks add these three.
        *calls(Recipients.ALL, "/update_weight_version", changes=True),
        *calls(Recipients.ALL, "/load_lora_adapter", "/unload_lora_adapter", changes=True),
        *calls(Recipients.ONE, "/init_weight_transfer_engine", "/init_broadcaster"),
        *calls(Recipients.ONE, "/start_weight_update", "/start_draft_weight_update"),
        *calls(Recipients.ONE, "/update_weights", "/finish_weight_update", changes=True),
        # Clients count ranks by it; the answers of several workers must not be added up.
        ControlCall("/get_world_size", _GET, Recipients.ONE),
        *calls(Recipients.ALL, "/start_profile", "/stop_profile", "/collective_rpc"),
        *calls(Recipients.ANY, "/weight_info", "/tokenizer_info", "/version", "/ping"),
        ControlCall("/server_info", _GET, Recipients.ANY, secret=True),
    ),
    loads=("/load",),
    relayed=(
        *SHARED_APIS,
        "/v2/rerank",
        "/pooling",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/skyrl/v1/generate",
    ),
)
