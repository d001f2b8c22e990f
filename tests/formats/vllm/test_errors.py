"""Errors in the engine's envelope."""

from __future__ import annotations

import json

import pytest

from gateway import errors
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.errors import in_band
from gateway.testing.contract import KINDS
from tests.formats.vllm.support import recorded

#: Status -> what the engine calls its errors of this status.
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "BadRequestError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    422: "UnprocessableEntityError",
    431: "BadRequestError",
    499: "BadRequestError",
    500: "InternalServerError",
    502: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_is_rendered_in_the_envelope(kind: type[GatewayError]) -> None:
    reply = FORMAT.render(kind("m"))
    found = json.loads(reply.body)["error"]
    assert (found["message"], found["type"], found["code"]) == ("m", TYPES[reply.status], reply.status)
    assert list(found) == ["message", "type", "param", "code"]


def test_invalid_field_is_named() -> None:
    """The engine's ``param``, for an unknown model always ``model``."""
    rendered = FORMAT.render(InvalidRequest("m", param="body.token_ids")).body
    assert json.loads(rendered)["error"]["param"] == "body.token_ids"
    assert json.loads(FORMAT.render(errors.UnknownModel("m")).body)["error"]["param"] == "model"
    assert json.loads(FORMAT.render(errors.NoWorker("m")).body)["error"]["param"] is None


@pytest.mark.parametrize("message", ['quote " and \\', "日本", "\ud800", "\x00\n", ""])
def test_any_message_is_valid_json(message: str) -> None:
    error = InvalidRequest(message)
    assert json.loads(FORMAT.render(error).body)["error"]["message"] == message
    assert json.loads(in_band(error).split(b"\n\n")[0][6:])["error"]["message"] == message


def test_error_reply_is_spelled_as_the_engine_spells_it() -> None:
    """Byte for byte the recorded reply, given its message."""
    body = recorded("generate")["err-token-out-of-vocab"]["body"]
    error = InvalidRequest(json.loads(body)["error"]["message"])
    assert FORMAT.render(error).body == body.encode()


def test_error_event_is_spelled_as_the_engine_spells_it() -> None:
    """Byte for byte the recorded stream, given its message."""
    error = InvalidRequest("Token id 512 is out of vocabulary")
    assert in_band(error) == recorded("generate")["err-stream-oov"]["body"].encode()
