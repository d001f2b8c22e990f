"""An error of the gateway looks like one of the engine; the contract suite proves that each is rendered."""

from __future__ import annotations

import json

import pytest

from gateway import errors
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.vllm import FORMAT as VLLM
from gateway.testing.contract import KINDS
from tests.formats.dialects import BOTH, DIALECTS, Dialect
from tests.formats.support import DONE, records

#: Status -> what vLLM calls its errors of this status.
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
    508: "InternalServerError",
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_is_rendered_as_the_engine_does(kind: type[GatewayError]) -> None:
    assert SGLANG.render(kind("bad")).body == b'{"error":{"message":"bad"}}'
    reply = VLLM.render(kind("m"))
    found = json.loads(reply.body)["error"]
    assert (found["message"], found["type"], found["code"]) == ("m", TYPES[reply.status], reply.status)
    assert list(found) == ["message", "type", "param", "code"]


@BOTH
@pytest.mark.parametrize("message", ['quote " and \\', "日本", "\ud800", "\x00\n", ""])
def test_error_event_of_any_message_is_one_line_of_json(dialect: Dialect, message: str) -> None:
    event, done = dialect.in_band(InvalidRequest(message)).split(b"\n", 1)
    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == message
    assert done == b"\n" + DONE


def test_invalid_field_is_named() -> None:
    """vLLM's ``param``, for an unknown model always ``model``."""
    for error, param in (
        (InvalidRequest("m", param="body.token_ids"), "body.token_ids"),
        (errors.UnknownModel("m"), "model"),
        (errors.NoWorker("m"), None),
    ):
        assert json.loads(VLLM.render(error).body)["error"]["param"] == param


def test_error_is_spelled_as_vllm_spells_it() -> None:
    """Byte for byte the recorded reply and the recorded stream, given their message."""
    body = records("vllm", "generate")["err-token-out-of-vocab"]["body"]
    error = InvalidRequest(json.loads(body)["error"]["message"])
    assert VLLM.render(error).body == body.encode()
    stream = records("vllm", "generate")["err-stream-oov"]["body"].encode()
    assert DIALECTS["vllm"].in_band(InvalidRequest("Token id 512 is out of vocabulary")) == stream


def test_error_event_is_spelled_as_sglang_spells_it() -> None:
    """Retryable where waiting helps."""
    in_band = DIALECTS["sglang"].in_band
    detail = b'{"message":"cut","type":"upstream_incomplete","code":502,"retryable":false}'
    assert in_band(errors.UpstreamIncomplete("cut")) == b'data: {"error":%b}\n\n' % detail + DONE
    assert b'"retryable":true' in in_band(errors.Draining("later"))
