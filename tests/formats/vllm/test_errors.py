"""Errors in the engine's envelope."""

from __future__ import annotations

import json

import pytest

from gateway import errors
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.errors import in_band
from tests.formats.vllm.support import recorded

KINDS: list[tuple[GatewayError, int, str]] = [
    (errors.InvalidRequest("m"), 400, "BadRequestError"),
    (errors.MethodNotAllowed("m"), 405, "BadRequestError"),
    (errors.Unauthorized("m"), 401, "AuthenticationError"),
    (errors.BodyTimeout("m"), 408, "RequestTimeoutError"),
    (errors.RequestTooLarge("m"), 413, "RequestEntityTooLargeError"),
    (errors.MetadataTooLarge("m"), 431, "BadRequestError"),
    (errors.PoisonedRequest("m"), 422, "UnprocessableEntityError"),
    (errors.UnknownModel("m"), 404, "NotFoundError"),
    (errors.NoWorker("m"), 503, "ServiceUnavailableError"),
    (errors.WaitTimeout("m"), 504, "GatewayTimeoutError"),
    (errors.ReplyUnread("m"), 408, "RequestTimeoutError"),
    (errors.OutOfSockets("m"), 503, "ServiceUnavailableError"),
    (errors.Draining("m"), 503, "ServiceUnavailableError"),
    (errors.Overloaded("m"), 503, "ServiceUnavailableError"),
    (errors.ProcessDied("m"), 500, "InternalServerError"),
    (errors.ConnectFailed("m"), 502, "InternalServerError"),
    (errors.UpstreamIncomplete("m"), 502, "InternalServerError"),
    (errors.NotReceived("m"), 502, "InternalServerError"),
    (errors.UpstreamMalformed("m"), 502, "InternalServerError"),
    (errors.UpstreamTimeout("m"), 504, "GatewayTimeoutError"),
    (errors.Cancelled("m"), 499, "BadRequestError"),
    (errors.Aborted("m"), 499, "BadRequestError"),
    (errors.GatewayError("m"), 500, "InternalServerError"),
]


def subclasses(kind: type[GatewayError]) -> set[type[GatewayError]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def test_every_kind_of_error_is_in_the_table() -> None:
    """A kind that is added later must be added to the table."""
    assert {type(error) for error, _, _ in KINDS} == subclasses(GatewayError)


@pytest.mark.parametrize(("error", "status", "name"), KINDS)
def test_error_is_rendered_in_the_envelope(error: GatewayError, status: int, name: str) -> None:
    """Status and type are the engine's for this kind, and the code repeats the status."""
    reply = FORMAT.render(error)
    found = json.loads(reply.body)["error"]
    assert reply.status == found["code"] == status
    assert (found["message"], found["type"]) == ("m", name)
    assert list(found) == ["message", "type", "param", "code"]
    assert (b"content-type", b"application/json") in reply.headers


@pytest.mark.parametrize(("error", "status", "name"), KINDS)
def test_retry_after_is_sent_where_a_retry_may_succeed(error: GatewayError, status: int, name: str) -> None:
    """Only transient errors have the header, in seconds."""
    result = [value for key, value in FORMAT.render(error).headers if key == b"retry-after"]
    assert result == ([] if error.retry_after is None else [str(error.retry_after).encode()])


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
