"""Which endpoint speaks what, and which lists of endpoints are refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from gateway.catalog import (
    ABORT_PATHS,
    FORMAT_OPTIONS,
    CatalogError,
    Endpoint,
    configured_formats,
    default_catalog,
    validate_catalog,
)
from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.formats.vllm import VllmFormat
from gateway.settings import Settings


class Other(VllmFormat):
    name = "other"


@pytest.fixture(scope="module")
def formats() -> Mapping[str, AnyFormat]:
    return {**load_formats(), "other": Other()}


def catalog_of(formats: Mapping[str, AnyFormat], **chosen: Any) -> tuple[Endpoint, ...]:
    """The default catalog, with the settings' own values where none is chosen."""
    settings = Settings()
    paths = {"sglang_path": settings.sglang_generate_path, "vllm_path": settings.vllm_generate_path}
    return default_catalog(formats, **{"generate_format": settings.generate_format, **paths, **chosen})


def shown(endpoints: tuple[Endpoint, ...]) -> list[tuple[str, tuple[str, ...], str]]:
    return [(endpoint.path, endpoint.methods, endpoint.format.name) for endpoint in endpoints]


@pytest.mark.parametrize("name", ["sglang", "vllm", "other"])
def test_generate_speaks_the_format_that_is_named(name: str, formats: Mapping[str, AnyFormat]) -> None:
    """Any installed format may have `/generate`; the other route keeps its own."""
    assert shown(catalog_of(formats, generate_format=name)) == [
        ("/generate", ("POST", "PUT"), name),
        ("/inference/v1/generate", ("POST",), "vllm"),
    ]


def test_generate_speaks_sglang_unless_told_otherwise(formats: Mapping[str, AnyFormat]) -> None:
    """An unchanged SGLang client finds its engine's API."""
    assert catalog_of(formats)[0].format is formats["sglang"]


def test_paths_can_be_moved(formats: Mapping[str, AnyFormat]) -> None:
    """The usual paths are then free."""
    moved = catalog_of(formats, sglang_path="/a/b", vllm_path="/generate")
    assert [endpoint.path for endpoint in moved] == ["/a/b", "/generate"]


@pytest.mark.parametrize("name", ["", "sglan", "SGLANG", "x"])
def test_unknown_format_lists_the_installed_ones(name: str, formats: Mapping[str, AnyFormat]) -> None:
    """A user sees what could have been meant."""
    with pytest.raises(
        CatalogError, match=rf"unknown format '{name}'; installed formats: .*other, sglang, vllm"
    ):
        catalog_of(formats, generate_format=name)


def test_no_format_at_all_is_said() -> None:
    """Not an empty list of names."""
    with pytest.raises(CatalogError, match="installed formats: none"):
        catalog_of({})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("generate", "must start with a slash: 'generate'"),
        ("", "must start with a slash"),
        ("/a/:id", "must not start with ':' or '*'"),
        ("/*", "must not start with ':' or '*'"),
        ("/a/*rest/b", "must not start with ':' or '*'"),
        ("/a?b", "a character"),
        ("/a#b", "a character"),
        ("/a b", "a character"),
        ("/a\n", "a character"),
        ("/{id}", "a character"),
        ("/é", "a character"),
        ("/a%20b", "a character"),
    ],
)
@pytest.mark.parametrize("option", ["sglang_path", "vllm_path"])
def test_path_that_cannot_be_matched_is_refused(
    path: str, said: str, option: str, formats: Mapping[str, AnyFormat]
) -> None:
    """The message shows the path as it was given."""
    with pytest.raises(CatalogError) as caught:
        catalog_of(formats, **{option: path})
    assert said in str(caught.value)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("path", ["/", "/a:b", "/a*b", "/v1/x-y_z.~", "/generate/"])
def test_plain_path_is_accepted(path: str, formats: Mapping[str, AnyFormat]) -> None:
    """Signs inside a segment mean nothing."""
    assert catalog_of(formats, sglang_path=path)[0].path == path


def test_two_endpoints_on_one_path_are_refused(formats: Mapping[str, AnyFormat]) -> None:
    """Both are named."""
    with pytest.raises(
        CatalogError, match="'/inference/v1/generate' is given to two endpoints, sglang and vllm"
    ):
        catalog_of(formats, sglang_path="/inference/v1/generate")


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/health", "/health"),
        ("/workers/a", "/workers/{worker_id}"),
        ("/workers/a/b", "/workers/{url:path}"),
        ("/a.b", "/a.b"),
    ],
)
def test_path_of_the_gateway_itself_is_refused(path: str, own: str, formats: Mapping[str, AnyFormat]) -> None:
    """Whichever is found first would hide the other."""
    with pytest.raises(CatalogError, match="a path of the gateway itself") as caught:
        catalog_of(formats, vllm_path=path, reserved=["/metrics", own])
    assert repr(path) in str(caught.value) and repr(own) in str(caught.value)


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/health2", "/health"),
        ("/workers", "/workers/{worker_id}"),
        ("/workers/a/b", "/workers/{worker_id}"),
        ("/axb", "/a.b"),
        ("/axb/c", "/a.b/{name}"),
    ],
)
def test_path_beside_those_of_the_gateway_is_accepted(
    path: str, own: str, formats: Mapping[str, AnyFormat]
) -> None:
    """A template takes one segment, and a dot is a dot."""
    catalog_of(formats, sglang_path=path, reserved=[own])


@pytest.mark.parametrize("methods", [(), ("post",), ("POST", ""), "POST", ("PO ST",)])
def test_methods_that_never_match_are_refused(methods: Any, formats: Mapping[str, AnyFormat]) -> None:
    """Methods are case-sensitive on the wire."""
    with pytest.raises(CatalogError, match="methods in upper case"):
        validate_catalog([Endpoint("/a", methods, formats["vllm"])])


def test_catalog_of_a_host_is_held_to_the_same(formats: Mapping[str, AnyFormat]) -> None:
    """Any number of endpoints, any formats; no endpoint at all serves nobody."""
    own = [Endpoint(f"/{name}", ("POST",), formats[name]) for name in ("vllm", "other")]
    validate_catalog(own, reserved=["/health"])
    with pytest.raises(CatalogError, match="two endpoints"):
        validate_catalog([*own, own[0]])
    with pytest.raises(CatalogError, match="no endpoint"):
        validate_catalog([])


def test_abort_paths_are_the_engines_own(formats: Mapping[str, AnyFormat]) -> None:
    """Clients abort where they would at the engine; only installed formats are named."""
    assert ABORT_PATHS == {
        "sglang": ("/abort_request",),
        "vllm": ("/inference/v1/abort_requests", "/abort_requests"),
    }
    assert ABORT_PATHS.keys() <= formats.keys()


class Choosy(VllmFormat):
    """Takes its own name's options and remembers them."""

    def __init__(self, name: str, options: Mapping[str, str] = MappingProxyType({})) -> None:
        self.name = name
        self.options = options

    def configured(self, options: Mapping[str, str]) -> Choosy:
        if "bad" in options.values():
            raise ValueError(f"{next(iter(options))}: no such value")
        return Choosy(self.name, options)


CHOSEN = {"sglang_stream_mode": "incremental", "passthrough_engine_errors": "true", "vocab_size": "9"}


def test_each_format_is_given_the_settings_it_knows() -> None:
    """And one that knows none is left as it was."""
    given = {name: Choosy(name) for name in ("sglang", "vllm", "other")}
    made: Mapping[str, Any] = configured_formats(given, CHOSEN)
    shared = {"passthrough_engine_errors": "true", "vocab_size": "9"}
    assert made["sglang"].options == {"stream_mode": "incremental", **shared}
    assert made["vllm"].options == shared
    assert made["other"] is given["other"]


def test_formats_are_left_alone_when_nothing_was_chosen() -> None:
    """A plugin without settings of its own need not know of any."""
    given = {"sglang": Choosy("sglang")}
    assert configured_formats(given, {})["sglang"] is given["sglang"]


def test_value_that_a_format_refuses_is_a_start_up_error_that_names_both() -> None:
    with pytest.raises(CatalogError, match="format 'vllm': passthrough_engine_errors: no such value"):
        configured_formats({"vllm": Choosy("vllm")}, {"passthrough_engine_errors": "bad"})


def test_options_are_those_of_settings_that_exist() -> None:
    names = {setting for options in FORMAT_OPTIONS.values() for setting in options}
    assert names <= set(Settings.model_fields)
