"""The OpenAPI operation: complete in itself, and true to the engine."""

from __future__ import annotations

import json

from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.schema import GenerateReply, GenerateRequest
from tests.formats.vllm.support import recorded


def test_schemas_show_the_fields_that_users_need() -> None:
    content = FORMAT.openapi()["requestBody"]["content"]["application/json"]
    assert set(content["schema"]["required"]) == {"token_ids", "sampling_params"}
    sampling = content["schema"]["properties"]["sampling_params"]["properties"]
    assert {"max_tokens", "temperature", "logprobs", "structured_outputs", "n"} <= sampling.keys()
    reply = FORMAT.openapi()["responses"]["200"]["content"]
    choice = reply["application/json"]["schema"]["properties"]["choices"]["items"]
    assert {"token_ids", "finish_reason", "logprobs"} <= choice["properties"].keys()


def test_examples_hold_under_the_schema_and_the_format() -> None:
    operation = FORMAT.openapi()
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    for name, stream in (("unary", False), ("stream", True)):
        body = examples[name]["value"]
        assert GenerateRequest.model_validate(body).stream is stream
        assert FORMAT.parse(json.dumps(body).encode(), ()).stream is stream
    content = operation["responses"]["200"]["content"]
    reply = content["application/json"]["examples"]["unary"]["value"]
    assert GenerateReply.model_validate(reply).choices[0].token_ids == [590, 1024]
    assert content["text/event-stream"]["examples"]["stream"]["value"].endswith("data: [DONE]\n\n")


def test_recorded_successes_fit_the_schemas() -> None:
    checked = 0
    for record in recorded("generate").values():
        if record.get("status") == 200 and not str(record["body"]).startswith("data:"):
            GenerateRequest.model_validate_json(record["request_body"])
            reply = GenerateReply.model_validate_json(record["body"])
            for model in (reply, *reply.choices):
                assert not model.model_extra
            checked += 1
    assert checked > 40
