"""Parsing of requests: which fields are read, and that no bytes raise other errors."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.contract import Projection
from gateway.formats.routing_hints import Hints
from gateway.formats.vllm import FORMAT
from gateway.testing.damage import ANY_JSON


def project(body: bytes | dict[str, Any], *headers: tuple[bytes, bytes]) -> Projection:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return FORMAT.project(FORMAT.parse(raw, headers))


def test_projection_of_a_full_body() -> None:
    found = project(
        {
            "token_ids": [1, 2, 3],
            "sampling_params": {"max_tokens": 7, "n": 2},
            "model": "m",
            "request_id": "r",
            "stream": True,
            "priority": -2,
            "cache_salt": "tenant",
        },
        (b"x-data-parallel-rank", b" 3 "),
    )
    hints = found.hints()
    assert hints.token_ids is not None
    assert list(hints.token_ids()) == [1, 2, 3]
    assert replace(hints, token_ids=None) == Hints(priority=2, lora="m", cache_salt="tenant", dp_rank=3)
    assert found._replace(hints=Hints) == Projection(
        stream=True,
        ids=("r",),
        model="m",
        prompt_tokens=3,
        max_tokens=7,
        samples=2,
        id_member="request_id",
    )


def test_token_ids_are_built_when_they_are_asked_for() -> None:
    """A long prompt costs nothing to project."""
    body = b'{"token_ids":[%b],"sampling_params":{}}' % b",".join([b"123456"] * 200_000)
    asked = FORMAT.parse(body, ())
    tracemalloc.start()
    try:
        found = FORMAT.project(asked)
        found.hints()
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert (build := found.hints().token_ids) is not None and len(build()) == 200_000


def test_images_are_read_only_if_there_are_features() -> None:
    assert project(b'{"token_ids":[1],"features":null}').hints().images is None
    for features in (b"7", b"{}", b'{"mm_hashes":{}}', b'{"x":NaN}'):
        find = project(b'{"token_ids":[1],"features":%b}' % features).hints().images
        assert find is not None and find() is None


@given(
    st.dictionaries(
        st.sampled_from(["token_ids", "sampling_params", "request_id", "model", "stream", "other"]),
        ANY_JSON | st.fixed_dictionaries({"n": ANY_JSON, "max_tokens": ANY_JSON}),
    )
)
def test_every_object_is_accepted_whatever_its_types(body: dict[str, Any]) -> None:
    found = project(body)
    assert found.samples >= 1
    ids = body.get("token_ids")
    if isinstance(ids, list) and all(type(item) is int for item in ids):
        assert found.prompt_tokens == len(ids)


@given(st.binary(max_size=40))
def test_any_header_value_names_an_id_or_none(value: bytes) -> None:
    """A usable name is one that the engine reads back unchanged from a header."""
    found = project(b"{}", (b"x-request-id", value))
    assert found.ids == (value.decode("latin-1"),)
    if found.ids_usable:
        assert value and value == value.strip() and value.isascii() and value.decode().isprintable()
