"""The endpoints that settings define, and the start-up error of each contradiction."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.catalog import CatalogError
from gateway.settings import Settings, load_settings
from gateway.wiring.endpoints import serving

OWN = ("/inference/v1/generate", ("POST",), "vllm")


def served(**chosen: Any) -> list[tuple[str, tuple[str, ...], str]]:
    endpoints = serving(Settings(**chosen), None).generate
    return [(endpoint.path, endpoint.methods, endpoint.format.name) for endpoint in endpoints]


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_generate_speaks_the_format_that_is_named(name: str) -> None:
    assert served(generate_format=name) == [("/generate", ("POST", "PUT"), name), OWN]
    assert served()[0][2] == "sglang", "by default"


def test_paths_can_be_moved() -> None:
    moved = served(sglang_generate_path="/a/b", vllm_generate_path="/generate")
    assert [path for path, _, _ in moved] == ["/a/b", "/generate"]


def test_endpoints_can_be_added() -> None:
    """At a path of the user's or at the format's own; with the format's own methods."""
    assert served(endpoint=("/a=sglang,/b=vllm",))[2:] == [
        ("/a", ("POST", "PUT"), "sglang"),
        ("/b", ("POST",), "vllm"),
    ]
    assert served(sglang_generate_path="/moved", endpoint=("sglang",))[2][0] == "/generate"


def test_endpoints_come_from_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_ENDPOINTS", "/a=sglang, /b=vllm")
    assert list(load_settings().endpoints) == [("/a", "sglang"), ("/b", "vllm")]
    assert list(load_settings({"endpoint": ("/c=x", "y")}).endpoints) == [("/c", "x"), (None, "y")]


@pytest.mark.parametrize("word", ["0", "false", "No", "OFF"])
def test_endpoints_of_a_format_are_switched_off_by_the_variable_of_dynamo(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those at all paths, and of the format that `/generate` speaks, whichever that is."""
    monkeypatch.setenv("DYN_SGLANG_ENABLE_GENERATE", word)
    assert served(endpoint=("/a=sglang", "/b=vllm")) == [OWN, ("/b", ("POST",), "vllm")]
    assert served(generate_format="vllm") == [("/generate", ("POST", "PUT"), "vllm"), OWN]
    monkeypatch.setenv("DYN_VLLM_ENABLE_INFERENCE_V1_GENERATE", word)
    both = "DYN_SGLANG_ENABLE_GENERATE, DYN_VLLM_ENABLE_INFERENCE_V1_GENERATE"
    with pytest.raises(CatalogError, match=f"^{both}: no generate endpoint is left"):
        served()
    monkeypatch.setenv("DYN_SGLANG_ENABLE_GENERATE", "yes")
    assert served() == [("/generate", ("POST", "PUT"), "sglang")]


ENDPOINTS, SGLANG_PATH = "DYN_ENDPOINTS", "DYN_HTTP_SVC_SGLANG_GENERATE_PATH"
VLLM_PATH = "DYN_HTTP_SVC_VLLM_GENERATE_PATH"
INSTALLED = "unknown format '%s'; installed formats: .*sglang, .*vllm"


@pytest.mark.parametrize(
    ("chosen", "named", "message"),
    [
        ({"generate_format": "sglan"}, "DYN_GENERATE_FORMAT", INSTALLED % "sglan"),
        ({"endpoint": ("/a=nope",)}, ENDPOINTS, INSTALLED % "nope"),
        ({"endpoint": ("/generate=vllm",)}, f"{ENDPOINTS}, {SGLANG_PATH}", "two endpoints, sglang and vllm"),
        ({"endpoint": ("vllm",)}, f"{ENDPOINTS}, {VLLM_PATH}", "two endpoints, vllm and vllm"),
        (
            {"endpoint": ("/metrics=vllm",)},
            f"{ENDPOINTS}, DYN_HTTP_SVC_METRICS_PATH",
            "clashes with '/metrics'",
        ),
        ({"endpoint": ("/flush_cache=vllm",)}, ENDPOINTS, "clashes with '/flush_cache'"),
        ({"sglang_generate_path": OWN[0]}, f"{SGLANG_PATH}, {VLLM_PATH}", "two endpoints"),
        ({"endpoint": ("/a=vllm",), "relay_path": ("/a",)}, "DYN_RELAY_PATHS", "two endpoints"),
    ],
)
def test_endpoint_that_cannot_be_served_is_refused_by_the_name_of_its_settings(
    chosen: dict[str, Any], named: str, message: str
) -> None:
    with pytest.raises(CatalogError, match=f"^{named}: .*{message}"):
        served(**chosen)


def test_paths_of_endpoints_may_have_timeouts() -> None:
    served(endpoint=("/a=vllm",), request_timeout_secs=("/a=5",))
