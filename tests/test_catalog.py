"""Which lists of endpoints are refused, and how the routes that formats declare are merged."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from gateway.catalog import (
    CatalogError,
    Endpoint,
    configured_formats,
    engine_routes,
    relays,
    validate_catalog,
)
from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.formats.routes import ControlCall, Recipients, RelayedRoute, Routes
from gateway.formats.vllm import VllmFormat
from gateway.settings import Settings

FORMATS = load_formats()
VLLM = FORMATS["vllm"]


def declaring(name: str, **routes: Any) -> AnyFormat:
    """A format that declares ``routes``."""
    made: AnyFormat = type("Declaring", (VllmFormat,), {"name": name, "routes": Routes(**routes)})()
    return made


def at(path: str) -> Endpoint:
    return Endpoint(path, ("POST",), VLLM)


@pytest.mark.parametrize(
    ("path", "own", "message"),
    [
        ("generate", "", "must start with a slash: 'generate'"),
        ("", "", "must start with a slash"),
        *((path, "", "must not start with ':' or '*'") for path in ("/a/:id", "/*", "/a/*rest/b")),
        *((path, "", "a character") for path in ("/a?b", "/a#b", "/a b", "/a\n", "/{id}", "/é", "/a%20b")),
        ("/health", "/health", "a path of the gateway itself"),
        ("/workers/a", "/workers/{worker_id}", "a path of the gateway itself"),
        ("/workers/a/b", "/workers/{url:path}", "a path of the gateway itself"),
        ("/a.b", "/a.b", "a path of the gateway itself"),
    ],
)
def test_path_that_cannot_be_matched_or_is_the_gateways_is_refused(path: str, own: str, message: str) -> None:
    """The message shows the path as it was given, and the other one. One would hide the other."""
    with pytest.raises(CatalogError) as caught:
        validate_catalog([at(path)], reserved=["/metrics", own] if own else [])
    for text in (message, repr(path), repr(own) if own else ""):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("path", "own"),
    [
        *((path, "/metrics") for path in ("/", "/a:b", "/a*b", "/v1/x-y_z.~", "/generate/")),
        ("/health2", "/health"),
        ("/workers", "/workers/{worker_id}"),
        ("/workers/a/b", "/workers/{worker_id}"),
        ("/axb", "/a.b"),
        ("/axb/c", "/a.b/{name}"),
    ],
)
def test_plain_path_beside_those_of_the_gateway_is_accepted(path: str, own: str) -> None:
    """A template takes one segment, and a dot is a dot."""
    validate_catalog([at(path)], reserved=[own])


@pytest.mark.parametrize("methods", [(), ("post",), ("POST", ""), "POST", ("PO ST",)])
def test_methods_that_never_match_are_refused(methods: Any) -> None:
    """Methods are case-sensitive on the wire."""
    with pytest.raises(CatalogError, match="methods in upper case"):
        validate_catalog([Endpoint("/a", methods, VLLM)])


def test_two_endpoints_on_one_path_and_no_endpoint_at_all_are_refused() -> None:
    own = [Endpoint("/a", ("POST",), FORMATS["sglang"]), at("/b")]
    validate_catalog(own)
    with pytest.raises(CatalogError, match="'/a' is given to two endpoints, sglang and vllm"):
        validate_catalog([*own, at("/a")])
    with pytest.raises(CatalogError, match="no endpoint"):
        validate_catalog([])


def test_path_that_several_formats_declare_is_for_all_of_them() -> None:
    both = {name: FORMATS[name] for name in ("sglang", "vllm")}
    routes = engine_routes(both.values())
    assert routes.calls["/server_info"].formats == ("sglang", "vllm")
    assert routes.calls["/update_weight_version"].formats == ("sglang", "vllm")
    assert routes.calls["/flush_cache"].formats == ("sglang",)
    assert routes.loads == {"/v1/loads": ("sglang",), "/get_load": ("sglang",), "/load": ("vllm",)}
    paths = {"/abort_request": "sglang", "/inference/v1/abort_requests": "vllm", "/abort_requests": "vllm"}
    assert {path: format.name for path, format in routes.aborts.items()} == paths
    (chat,) = (each for each in relays(both, [], chosen={}) if each.path == "/v1/chat/completions")
    assert chat.format.capability == f"{FORMATS['sglang'].capability}|{VLLM.capability}"


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"aborts": ("/x",)}, {"aborts": ("/x",)}, "'/x' is declared as abort call by format 'a' and as"),
        ({"aborts": ("/x",)}, {"loads": ("/x",)}, "'/x' is declared as abort call by format 'a' and as load"),
        (
            {"control": (ControlCall("/x"),)},
            {"control": (ControlCall("/x", to=Recipients.ONE),)},
            "formats a and b declare the control call '/x' differently",
        ),
    ],
)
def test_declarations_that_contradict_each_other_are_refused(
    one: Mapping[str, Any], other: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(CatalogError, match=message):
        engine_routes([declaring("a", **one), declaring("b", **other)])


#: The routes that each kind of engine has (SGLang 0.5.22, vLLM 0.33.0): recipients and methods -> paths. A
#: relayed route goes to one worker that is chosen for each request. ``/init_broadcaster``, ``/skyrl`` and
#: the adapter calls without ``/v1`` are what training frameworks add to vLLM.
ROUTES = {
    "sglang": {
        "relayed POST": """/v1/chat/completions /v1/completions /v1/responses /v1/messages
            /v1/messages/count_tokens /v1/embeddings /v1/score /v1/rerank /tokenize /detokenize /v1/tokenize
            /v1/detokenize /classify""",
        "relayed POST|PUT": "/encode",
        "relayed GET|POST": "/open_session /close_session",
        "relayed GET|POST|PUT|PATCH|DELETE": "/v1/responses/* /v1/audio/*",
        "all POST": """/pause_generation /continue_generation /destroy_weights_update_group
            /update_weights_from_disk /update_weight_version /load_lora_adapter /unload_lora_adapter
            /start_profile /stop_profile""",
        "all GET|POST": "/release_memory_occupation /resume_memory_occupation /flush_cache",
        "one POST": """/update_weights_from_distributed /update_weights_from_tensor /update_weights_from_ipc
            /load_lora_adapter_from_tensors /init_weights_update_group /begin_weight_update /end_weight_update
            /init_weights_send_group_for_remote_instance /send_weights_to_remote_instance""",
        "any GET": """/model_info /get_model_info /server_info /get_server_info /get_weight_version
            /weight_version /ping""",
    },
    "vllm": {
        "relayed POST": """/v1/chat/completions /v1/completions /v1/responses /v1/messages
            /v1/messages/count_tokens /v1/embeddings /v1/score /v1/rerank /v2/rerank /pooling
            /v1/chat/completions/render /v1/completions/render /skyrl/v1/generate /tokenize /detokenize
            /classify""",
        "relayed GET|POST|PUT|PATCH|DELETE": "/v1/responses/* /v1/audio/*",
        "all POST": """/pause /resume /sleep /wake_up /reset_prefix_cache /reset_mm_cache
            /reset_encoder_cache /release_kv_cache_memory /shutdown_weight_transfer_engine
            /v1/load_lora_adapter /v1/unload_lora_adapter /update_weight_version /load_lora_adapter
            /unload_lora_adapter /start_profile /stop_profile /collective_rpc""",
        "all GET": "/is_paused /is_sleeping",
        "one POST": """/init_weight_transfer_engine /init_broadcaster /start_weight_update
            /start_draft_weight_update /update_weights /finish_weight_update""",
        "one GET": "/get_world_size",
        "any GET": "/weight_info /tokenizer_info /version /ping /server_info",
    },
}


@pytest.mark.parametrize("kind", ROUTES)
def test_default_routes_are_those_of_the_engine(kind: str) -> None:
    declared = FORMATS[kind].routes
    found: dict[str, set[str]] = {}
    for route in map(RelayedRoute.parse, declared.relayed):
        found.setdefault(f"relayed {'|'.join(route.methods)}", set()).add(route.path)
    for call in declared.control:
        found.setdefault(f"{call.to} {'|'.join(call.methods)}", set()).add(call.path)
    assert found == {kinds: set(paths.split()) for kinds, paths in ROUTES[kind].items()}


class Choosy(VllmFormat):
    """Takes any options and remembers them."""

    def __init__(self, name: str, chosen: Mapping[str, str] = MappingProxyType({})) -> None:
        self.name = name
        self.settings = FORMATS[name].settings if name in FORMATS else {}
        self.chosen = chosen

    def configured(self, options: Mapping[str, str]) -> Choosy:
        if "bad" in options.values():
            raise ValueError(f"{next(iter(options))}: no such value")
        return Choosy(self.name, options)


def test_each_format_is_given_the_settings_it_declares() -> None:
    """A format that declares none of the chosen ones is returned as it is; an error names the format."""
    given = {name: Choosy(name) for name in ("sglang", "vllm", "other")}
    chosen = {"sglang_stream_mode": "incremental", "passthrough_engine_errors": "true", "vocab_size": "9"}
    made: Mapping[str, Any] = configured_formats(given, chosen)
    shared = {"passthrough_engine_errors": "true", "vocab_size": "9"}
    assert made["sglang"].chosen == {"stream_mode": "incremental", **shared}
    assert made["vllm"].chosen == shared
    assert made["other"] is given["other"]
    assert configured_formats(given, {})["sglang"] is given["sglang"]
    with pytest.raises(CatalogError, match="format 'vllm': passthrough_engine_errors: no such value"):
        configured_formats({"vllm": Choosy("vllm")}, {"passthrough_engine_errors": "bad"})


def test_declared_settings_exist() -> None:
    """Their fields are those of Settings, and their default paths the endpoints' own."""
    assert {name for format in FORMATS.values() for name in format.settings} <= Settings.model_fields.keys()
    assert FORMATS["sglang"].routes.path == Settings().generate_path
    assert {name: FORMATS[name].routes.path for name in Settings().format_paths} == Settings().format_paths
