"""The routes of SGLang's engines (SGLang 0.5.22, ``http_server.py``).

Owns: their paths, methods and recipients. Must never enter: what a call contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.formats.routes import SHARED_APIS, ControlCall, Recipients, Routes, calls

#: Settings of the gateway that are options of this format: field name to option.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "sglang_stream_mode": "stream_mode",
        "passthrough_engine_errors": "passthrough_engine_errors",
        "vocab_size": "vocab_size",
        "event_limit_mb": "event_limit",
    }
)

#: The setting of the gateway that switches the generate endpoint.
SWITCH = "sglang_enable_generate"

_GET, _EITHER = ("GET",), ("GET", "POST")

ROUTES = Routes(
    path="/generate",
    methods=("POST", "PUT"),
    aborts=("/abort_request",),
    control=(
        ControlCall("/pause_generation", pauses="generation"),
        ControlCall("/continue_generation", resumes="generation"),
        ControlCall("/release_memory_occupation", _EITHER, pauses="memory"),
        ControlCall("/resume_memory_occupation", _EITHER, resumes="memory"),
        ControlCall("/flush_cache", _EITHER),
        *calls(Recipients.ALL, "/destroy_weights_update_group"),
        *calls(Recipients.ALL, "/update_weights_from_disk", "/update_weight_version", changes=True),
        *calls(Recipients.ALL, "/load_lora_adapter", "/unload_lora_adapter", changes=True),
        *calls(Recipients.ONE, "/update_weights_from_distributed", changes=True),
        *calls(Recipients.ONE, "/update_weights_from_tensor", "/update_weights_from_ipc", changes=True),
        *calls(Recipients.ONE, "/load_lora_adapter_from_tensors", "/end_weight_update", changes=True),
        *calls(Recipients.ONE, "/init_weights_update_group", "/begin_weight_update"),
        *calls(Recipients.ONE, "/init_weights_send_group_for_remote_instance"),
        *calls(Recipients.ONE, "/send_weights_to_remote_instance"),
        *calls(Recipients.ANY, "/model_info", "/get_model_info", "/get_weight_version", "/weight_version"),
        *calls(Recipients.ALL, "/start_profile", "/stop_profile"),
        *calls(Recipients.ANY, "/ping"),
        ControlCall("/server_info", _GET, Recipients.ANY, secret=True),
        ControlCall("/get_server_info", _GET, Recipients.ANY, secret=True),
    ),
    loads=("/v1/loads", "/get_load"),
    relayed=(
        *SHARED_APIS,
        "/v1/tokenize",
        "/v1/detokenize",
        "POST|PUT /encode",
        "GET|POST /open_session",
        "GET|POST /close_session",
    ),
    creating=("/open_session",),
)
