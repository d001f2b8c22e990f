"""An error of the gateway looks like one of the engine."""

from __future__ import annotations

import json

import pytest

from gateway import errors
from gateway.errors import GatewayError
from gateway.formats.sglang import FORMAT
from gateway.formats.sglang.errors import in_band

EVERY = [errors.InvalidRequest("bad"), errors.Draining("bad"), errors.Cancelled("bad"), GatewayError("bad")]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_render_is_total(error: GatewayError) -> None:
    reply = FORMAT.render(error)
    assert reply.status == error.status
    assert reply.body == b'{"error":{"message":"bad"}}'
    assert (b"content-type", b"application/json") in reply.headers


@pytest.mark.parametrize("message", ['"quoted"\n', "é 世", "\ud800", "\x00"])
def test_message_of_any_characters_is_valid_json(message: str) -> None:
    assert json.loads(FORMAT.render(GatewayError(message)).body) == {"error": {"message": message}}
    assert b"\n" not in in_band(GatewayError(message)).split(b"\n\n")[0]


def test_in_band_error_is_spelled_as_the_engine_spells_it() -> None:
    event, done, rest = in_band(errors.UpstreamIncomplete("cut")).split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: ")) == {
        "error": {"message": "cut", "type": "upstream_incomplete", "code": 502, "retryable": False}
    }
    assert (done, rest) == (b"data: [DONE]", b"")


def test_in_band_error_is_retryable_where_waiting_helps() -> None:
    assert b'"retryable":true' in in_band(errors.Draining("later"))
