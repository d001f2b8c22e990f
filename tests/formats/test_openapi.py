"""The documented operations: complete in themselves, and true to the formats."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field

from gateway.formats.openapi import schema_of
from gateway.formats.sglang.body_fields import RESERVED
from gateway.formats.sglang.schema import GenerateRequest as SglangRequest
from gateway.formats.sglang.schema import Generation
from gateway.formats.vllm.schema import GenerateReply
from gateway.formats.vllm.schema import GenerateRequest as VllmRequest
from tests.formats.dialects import BOTH, DIALECTS, Dialect


class Inner(BaseModel):
    """An inner model."""

    number: int


class Middle(BaseModel):
    inner: Inner


class Outer(BaseModel):
    one: Inner = Field(description="This one.")
    several: list[Middle] | None = None


def test_schema_holds_what_it_referred_to_at_any_depth() -> None:
    """Members beside a reference override those it refers to."""
    schema = schema_of(Outer)
    assert "$ref" not in json.dumps(schema) and "$defs" not in json.dumps(schema)
    inner = schema["properties"]["several"]["anyOf"][0]["items"]["properties"]["inner"]
    assert inner["properties"] == {"number": {"title": "Number", "type": "integer"}}
    assert inner["description"] == "An inner model."
    one = schema["properties"]["one"]
    assert (one["description"], one["title"]) == ("This one.", "Inner")


@BOTH
def test_operation_is_json_without_references_and_its_requests_fit(dialect: Dialect) -> None:
    operation: Any = dialect.format.openapi()
    text = json.dumps(operation)
    assert json.loads(text) == operation
    assert '"$ref"' not in text and '"$defs"' not in text
    request: Any = {"sglang": SglangRequest, "vllm": VllmRequest}[dialect.name]
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    for name, stream in (("unary", False), ("stream", True)):
        body = examples[name]["value"]
        assert request.model_validate(body).stream is stream
        assert dialect.format.parse(json.dumps(body).encode(), ()).stream is stream


def test_example_replies_of_sglang_fit_and_its_reserved_keys_are_left_out() -> None:
    assert not set(RESERVED) & set(SglangRequest.model_fields)
    content = DIALECTS["sglang"].format.openapi()["responses"]["200"]["content"]
    Generation.model_validate(content["application/json"]["example"])
    *events, done, rest = content["text/event-stream"]["example"].split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    for event in events:
        Generation.model_validate_json(event.removeprefix("data: "))


def test_example_replies_of_vllm_fit_and_its_schemas_show_what_users_need() -> None:
    operation = DIALECTS["vllm"].format.openapi()
    request = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(request["required"]) == {"token_ids", "sampling_params"}
    sampling = request["properties"]["sampling_params"]["properties"]
    assert {"max_tokens", "temperature", "logprobs", "structured_outputs", "n"} <= sampling.keys()
    content = operation["responses"]["200"]["content"]
    choice = content["application/json"]["schema"]["properties"]["choices"]["items"]
    assert {"token_ids", "finish_reason", "logprobs"} <= choice["properties"].keys()
    reply = content["application/json"]["examples"]["unary"]["value"]
    assert GenerateReply.model_validate(reply).choices[0].token_ids == [590, 1024]
    assert content["text/event-stream"]["examples"]["stream"]["value"].endswith("data: [DONE]\n\n")
