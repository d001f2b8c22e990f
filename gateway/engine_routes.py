"""Which calls engines have beside their generate endpoint, and how each is to be treated.

Owns: the lists of control, information and other inference paths by format. Must never enter: sending any of
them, reading settings. With the catalog the one module outside the format folders that may know formats by
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_SGLANG, _VLLM = ("sglang",), ("vllm",)
_BOTH = _SGLANG + _VLLM
_GET, _EITHER = ("GET",), ("GET", "POST")


@dataclass(frozen=True, slots=True)
class ControlCall:
    """A control call of engines that speak one of ``formats``, sent to each such worker as it came.

    ``single``: it is for one worker only, as its body has the rank of that worker in a group, say.
    ``pauses`` is the kind of pause (gateway.fleet.cordons.pauses) it begins, ``resumes`` the one it ends.
    """

    path: str
    formats: tuple[str, ...]
    methods: tuple[str, ...] = ("POST",)
    single: bool = False
    pauses: str | None = None
    resumes: str | None = None


def _plain(formats: tuple[str, ...], *paths: str) -> tuple[ControlCall, ...]:
    return tuple(ControlCall(path, formats) for path in paths)


def _single(formats: tuple[str, ...], *paths: str) -> tuple[ControlCall, ...]:
    return tuple(ControlCall(path, formats, single=True) for path in paths)


CONTROL_CALLS: tuple[ControlCall, ...] = (
    ControlCall("/pause_generation", _SGLANG, pauses="generation"),
    ControlCall("/continue_generation", _SGLANG, resumes="generation"),
    ControlCall("/release_memory_occupation", _SGLANG, _EITHER, pauses="memory"),
    ControlCall("/resume_memory_occupation", _SGLANG, _EITHER, resumes="memory"),
    ControlCall("/pause", _VLLM, pauses="generation"),
    ControlCall("/resume", _VLLM, resumes="generation"),
    ControlCall("/sleep", _VLLM, pauses="memory"),
    ControlCall("/wake_up", _VLLM, resumes="memory"),
    ControlCall("/is_paused", _VLLM, _GET),
    ControlCall("/is_sleeping", _VLLM, _GET),
    ControlCall("/flush_cache", _SGLANG, _EITHER),
    *_plain(_SGLANG, "/update_weights_from_disk", "/destroy_weights_update_group"),
    *_plain(_VLLM, "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
    *_plain(_VLLM, "/release_kv_cache_memory", "/shutdown_weight_transfer_engine"),
    *_plain(_VLLM, "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    # One engine has them of its own, and training frameworks add them to the other.
    *_plain(_BOTH, "/update_weight_version", "/load_lora_adapter", "/unload_lora_adapter"),
    *_single(_SGLANG, "/init_weights_update_group", "/update_weights_from_distributed"),
    *_single(_SGLANG, "/update_weights_from_tensor", "/update_weights_from_ipc"),
    *_single(_SGLANG, "/init_weights_send_group_for_remote_instance", "/send_weights_to_remote_instance"),
    *_single(_SGLANG, "/begin_weight_update", "/end_weight_update", "/load_lora_adapter_from_tensors"),
    *_single(_VLLM, "/init_weight_transfer_engine", "/init_broadcaster"),
    *_single(_VLLM, "/start_weight_update", "/start_draft_weight_update"),
    *_single(_VLLM, "/update_weights", "/finish_weight_update"),
    # Clients count ranks by it, and those of several workers would be counted wrong.
    ControlCall("/get_world_size", _VLLM, _GET, single=True),
)

#: Path -> formats whose engines answer GET there with what they are; any one worker's answer will do.
INFORMATION_PATHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/model_info": _SGLANG,
        "/get_model_info": _SGLANG,
        "/server_info": _BOTH,
        "/get_server_info": _SGLANG,
        "/get_weight_version": _SGLANG,
        "/weight_version": _SGLANG,
        "/weight_info": _VLLM,
    }
)

#: Those of them whose answers hold what an engine was started with, keys maybe.
ARGUMENTS_PATHS = frozenset({"/server_info", "/get_server_info"})

#: Path -> formats, as above, for their load, which is told of all workers together.
LOAD_PATHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"/v1/loads": _SGLANG, "/get_load": _SGLANG, "/load": _VLLM}
)

#: Where the engines of any format have their metrics.
METRICS_PATH = "/metrics"

#: Path -> formats whose engines serve POST there: inference beside the generate endpoints.
RELAY_PATHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/v1/chat/completions": _BOTH,
        "/v1/completions": _BOTH,
        "/v1/responses": _BOTH,
        "/v1/embeddings": _BOTH,
        "/v1/score": _BOTH,
        "/v1/rerank": _BOTH,
        "/v1/chat/completions/render": _VLLM,
        "/v1/completions/render": _VLLM,
        "/skyrl/v1/generate": _VLLM,
        "/tokenize": _BOTH,
        "/detokenize": _BOTH,
        "/classify": _BOTH,
        "/encode": _SGLANG,
    }
)
