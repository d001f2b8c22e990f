"""The routes of TensorRT-LLM's engines.

Owns: their paths, methods and recipients. Must never enter: what a call contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.formats.routes import ControlCall, Recipients, Routes, calls

#: Settings of the gateway that are options of this format: field name to option.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {"passthrough_engine_errors": "passthrough_engine_errors", "event_limit_mb": "event_limit"}
)

_GET = ("GET",)

ROUTES = Routes(
    # Engines of every format have /v1/completions, and the gateway relays it to any of them. This path is the
    # engine's own behind a name, so that a client has to change only its base URL.
    path="/trtllm/v1/completions",
    control=(
        ControlCall("/release_memory", pauses="memory"),
        ControlCall("/resume_memory", resumes="memory"),
        # Of one worker, like that of any other engine with this call.
        *calls(Recipients.ONE, "/update_weights", changes=True),
        # Reading them uses them up.
        ControlCall("/perf_metrics", _GET, Recipients.ONE),
        ControlCall("/energy_metrics", _GET, Recipients.ONE),
        *calls(Recipients.ANY, "/version"),
        ControlCall("/server_info", _GET, Recipients.ANY, secret=True),
    ),
    relayed=("/v1/chat/completions", "/v1/completions", "/v1/responses", "GET|DELETE /v1/responses/*"),
)
