"""Schemas without references: they can be put anywhere in a document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, Field

from gateway.formats.openapi import schema_of
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.vllm import FORMAT as VLLM


class Inner(BaseModel):
    """An inner model."""

    number: int


class Middle(BaseModel):
    inner: Inner


class Outer(BaseModel):
    one: Inner = Field(description="This one.")
    several: list[Middle] | None = None


def test_schema_refers_to_nothing() -> None:
    text = json.dumps(schema_of(Outer))
    assert "$ref" not in text
    assert "$defs" not in text


def test_schema_holds_what_it_referred_to_at_any_depth() -> None:
    several = schema_of(Outer)["properties"]["several"]["anyOf"][0]
    inner = several["items"]["properties"]["inner"]
    assert inner["properties"] == {"number": {"title": "Number", "type": "integer"}}
    assert inner["description"] == "An inner model."


def test_members_beside_a_reference_override_those_it_refers_to() -> None:
    one = schema_of(Outer)["properties"]["one"]
    assert (one["description"], one["title"]) == ("This one.", "Inner")


@pytest.mark.parametrize("format", [SGLANG, VLLM])
def test_operation_of_a_format_is_json_without_references(format: Any) -> None:
    text = json.dumps(format.openapi())
    assert json.loads(text) == format.openapi()
    assert '"$ref"' not in text and '"$defs"' not in text
