"""What is looked at of a request that is passed on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.base import Ids, WorkerInfo
from gateway.formats.relayed import RelayedFormat
from gateway.formats.relayed.request import parse, project
from gateway.testing.model import ModelWorker

JSON = (b"content-type", b"application/json")
FORMAT = RelayedFormat("/v1/embeddings", "a|b")
WORKER = ModelWorker(WorkerInfo("e", "a", True), b"/base", None)


@pytest.mark.parametrize(
    ("body", "headers", "model"),
    [
        (b'{"messages":[{"model":"inner"}],"model":"m"}', [JSON], "m"),
        (b'{"model":"m"}', [], "m"),
        (b'{"model":"m"}', [JSON, (b"x-model", b"other")], "m"),
        (b'{"model":null}', [JSON, (b"x-model", b"h")], "h"),
        (b'{"model":7}', [JSON], None),
        (b'{"model":""}', [JSON], None),
        (b"--form-data", [(b"content-type", b"multipart/form-data"), (b"x-model", b" h ")], "h"),
        (b"{", [JSON], None),
        (b"[" * 100_000, [JSON], None),
        (b"", [(b"x-model", b"\xff")], None),
    ],
)
def test_model_is_that_of_the_body_or_else_of_the_header(
    body: bytes, headers: list[tuple[bytes, bytes]], model: str | None
) -> None:
    assert project(parse(body, headers)).model == model


def test_id_is_that_of_the_header() -> None:
    """Where it can stand in one; else the engine makes its own."""
    assert project(parse(b"{}", [(b"x-request-id", b" mine ")])).ids == ("mine",)
    for odd in (b"", b"\xff", "é".encode(), b"x" * 2000):
        assert project(parse(b"{}", [(b"x-request-id", odd)])).ids == ()


@given(st.binary(max_size=200), st.lists(st.tuples(st.sampled_from([JSON[0], b"x-model"]), st.binary())))
def test_any_request_is_taken_and_sent_as_it_came(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """An odd body is the engine's to refuse."""
    request = FORMAT.parse(body, headers)
    sent = FORMAT.upstream(request, WORKER, Ids(("p",), ("p",)))
    assert (sent.method, sent.target, sent.body) == (b"POST", b"/base/v1/embeddings", body)
    assert b"x-model" not in dict(sent.headers)


def test_engine_gets_the_dispatch_id_only_where_the_client_named_one() -> None:
    named = FORMAT.parse(b"{}", [JSON, (b"x-request-id", b"p")])
    assert FORMAT.upstream(named, WORKER, Ids(("p",), ("q",))).headers == [JSON, (b"x-request-id", b"q")]
    assert FORMAT.upstream(FORMAT.parse(b"{}", [JSON]), WORKER, Ids(("p",), ("p",))).headers == [JSON]


def test_settings_are_checked() -> None:
    assert FORMAT.configured({"passthrough_engine_errors": "true"}).name == "relayed"
    for options in ({"passthrough_engine_errors": "maybe"}, {"other": "1"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            FORMAT.configured(options)
