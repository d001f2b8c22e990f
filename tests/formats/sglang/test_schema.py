"""The documented schema fits the engine's requests and replies."""

from __future__ import annotations

import json

import pytest

from gateway.formats.sglang import FORMAT
from gateway.formats.sglang.body_fields import RESERVED
from gateway.formats.sglang.schema import GenerateRequest, Generation
from tests.formats.sglang.outcomes import OUTCOMES, SUCCEEDED
from tests.formats.sglang.support import recorded

GENERATED = recorded("generate")
ACCEPTED = [name for name in SUCCEEDED if OUTCOMES[name].error_status == "-"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_recorded_request_fits_the_schema(name: str) -> None:
    GenerateRequest.model_validate(json.loads(GENERATED[name]["request_body"]))


@pytest.mark.parametrize("name", [name for name in ACCEPTED if "unary" in name])
def test_recorded_reply_fits_the_schema(name: str) -> None:
    reply = json.loads(GENERATED[name]["body"])
    for generation in reply if isinstance(reply, list) else [reply]:
        Generation.model_validate(generation)


def test_schema_has_no_key_that_is_refused() -> None:
    assert not set(RESERVED) & set(GenerateRequest.model_fields)


def test_operation_has_examples_of_both_kinds_that_fit() -> None:
    operation = FORMAT.openapi()
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    unary, stream = (GenerateRequest.model_validate(examples[name]["value"]) for name in ("unary", "stream"))
    assert (unary.stream, stream.stream) == (False, True)
    content = operation["responses"]["200"]["content"]
    Generation.model_validate(content["application/json"]["example"])
    *events, done, rest = content["text/event-stream"]["example"].split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    for event in events:
        Generation.model_validate_json(event.removeprefix("data: "))
