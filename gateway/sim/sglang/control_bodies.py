"""The bodies of SGLang's control calls: the fields of each and their types, as the structs of SGLang 0.5.22
have them.

Owns: which call has which fields, reading such a body. Must never enter: what a call does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.sim.exchange import Exchange
from gateway.sim.sglang import errors
from gateway.sim.sglang.field_types import (
    MISSING,
    Check,
    any_list,
    boolean,
    dictionary,
    integer,
    list_of,
    literal,
    optional,
    string,
)
from gateway.sim.sglang.generate_body import Body, decoded

_SELECTOR = literal("target", "draft", "all")
_WEIGHTS: Mapping[str, Check] = {
    "load_format": optional(string),
    "flush_cache": boolean,
    "abort_all_requests": boolean,
    "weight_version": optional(string),
    "torch_empty_cache": boolean,
}
_TAGS = {"tags": optional(list_of(string))}
_GROUP = {"group_name": string}

#: Struct -> its fields, the required ones in their order. Other fields are ignored.
_FIELDS: Mapping[str, Mapping[str, Check]] = {
    "AbortReq": {"rid": optional(string), "abort_all": boolean, "abort_message": optional(string)},
    "PauseGenerationReqInput": {"mode": literal("abort", "retract", "in_place")},
    "ContinueGenerationReqInput": {"torch_empty_cache": boolean},
    "ReleaseMemoryOccupationReqInput": _TAGS,
    "ResumeMemoryOccupationReqInput": _TAGS,
    "UpdateWeightVersionReqInput": {"new_version": string, "abort_all_requests": boolean},
    "UpdateWeightFromDiskReqInput": {
        "model_path": string,
        **_WEIGHTS,
        "is_async": boolean,
        "keep_pause": boolean,
        "recapture_cuda_graph": boolean,
        "token_step": integer,
        "manifest": optional(dictionary),
    },
    "UpdateWeightsFromTensorReqInput": {
        "serialized_named_tensors": list_of(string),
        **_WEIGHTS,
        "selector": _SELECTOR,
    },
    "UpdateWeightsFromDistributedReqInput": {
        "names": list_of(string),
        "dtypes": list_of(string),
        "shapes": list_of(any_list),
        **_GROUP,
        **_WEIGHTS,
        "selector": _SELECTOR,
    },
    "UpdateWeightsFromIPCReqInput": {"zmq_handles": dictionary, **_WEIGHTS},
    "InitWeightsUpdateGroupReqInput": {
        "master_address": string,
        "master_port": integer,
        "rank_offset": integer,
        "world_size": integer,
        **_GROUP,
        "backend": string,
    },
    "DestroyWeightsUpdateGroupReqInput": _GROUP,
    "BeginWeightUpdateReqInput": {"selector": _SELECTOR},
    "EndWeightUpdateReqInput": {},
    "LoadLoRAAdapterReqInput": {"lora_name": string, "lora_path": string, "pinned": boolean},
    "UnloadLoRAAdapterReqInput": {"lora_name": string},
}

#: Struct -> its required fields.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "UpdateWeightVersionReqInput": ("new_version",),
    "UpdateWeightFromDiskReqInput": ("model_path",),
    "UpdateWeightsFromTensorReqInput": ("serialized_named_tensors",),
    "UpdateWeightsFromDistributedReqInput": ("names", "dtypes", "shapes"),
    "UpdateWeightsFromIPCReqInput": ("zmq_handles",),
    "InitWeightsUpdateGroupReqInput": ("master_address", "master_port", "rank_offset", "world_size"),
    "LoadLoRAAdapterReqInput": ("lora_name", "lora_path"),
    "UnloadLoRAAdapterReqInput": ("lora_name",),
}


def read(exchange: Exchange, struct: str) -> Body:
    """Return the body of a control call, validated as the engine's ``struct``. Raises Refusal."""
    function = exchange.arrival.target.partition(b"?")[0].decode("latin-1").strip("/")
    body = decoded(exchange, function)
    if problems := _problems(body, struct):
        raise errors.malformed([_no_instance(body, struct), *problems], (function, exchange))
    return dict(body)


def _problems(body: Any, struct: str) -> list[str]:
    place = f"function-after[build_struct(), {struct}]"
    if (wrong := dictionary(body)) is not None:
        return [wrong((place,), body)]
    problems = []
    needed = _NEEDED.get(struct, ())
    for name, check in _FIELDS[struct].items():
        if name not in body:
            if name in needed:
                problems.append(MISSING((place, name), body))
        elif (wrong := check(body[name])) is not None:
            problems.append(wrong((place, name), body[name]))
    return problems


def _no_instance(body: Any, struct: str) -> str:
    """Return the first line of the validator's text: it tries the struct itself before its fields."""
    return (
        f"{{'type': 'is_instance_of', 'loc': ('body', 'is-instance[{struct}]'), "
        f"'msg': 'Input should be an instance of {struct}', 'input': {body!r}, "
        f"'ctx': {{'class': '{struct}'}}}}"
    )
