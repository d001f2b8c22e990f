"""Relayed requests: what is read of them, and what is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.contract import Ids
from gateway.formats.relayed import RelayedFormat
from gateway.formats.relayed.request import parse, project
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.model import ModelWorker

JSON = (b"content-type", b"application/json")
FORMAT = RelayedFormat("/v1/embeddings", "a|b")
WORKER = ModelWorker(WorkerInfo("e", "a", True), b"/base", None)


@pytest.mark.parametrize(
    ("body", "headers", "model"),
    [
        (b'{"messages":[{"model":"inner"}],"model":"m"}', [JSON], "m"),
        (b'{"model":"m"}', [JSON, (b"x-model", b"other")], "m"),
        (b'{"model":null}', [JSON, (b"x-model", b"h")], "h"),
        (b'{"model":7}', [JSON], None),
        (b"--form-data", [(b"content-type", b"multipart/form-data"), (b"x-model", b" h ")], "h"),
        (b"[" * 100_000, [JSON], None),
        (b"", [(b"x-model", b"\xff")], None),
    ],
)
def test_model_is_that_of_the_body_or_else_of_the_header(
    body: bytes, headers: list[tuple[bytes, bytes]], model: str | None
) -> None:
    assert project(parse(body, headers)).model == model


HEADER = (b"x-request-id", b" head ")


@pytest.mark.parametrize(
    ("body", "headers", "id", "member"),
    [
        (b'{"rid":"r","request_id":"q"}', [JSON, HEADER], "r", "rid"),
        (b'{"request_id":"q"}', [JSON, HEADER], "head", None),
        (b'{"rid":["r"],"request_id":"q"}', [JSON], "q", "request_id"),
        (b'{"rid":null}', [HEADER], "head", None),
        (b'{"rid":"","rid":"\\u00e9"}', [JSON], "é", "rid"),
        (b'{"messages":[{"rid":"inner"}]}', [JSON], None, None),
        (b'{"rid":"r"', [JSON, HEADER], "head", None),
    ],
)
def test_id_is_found_where_an_engine_would_look_first(
    body: bytes, headers: list[tuple[bytes, bytes]], id: str | None, member: str | None
) -> None:
    projection = project(parse(body, headers))
    assert projection.ids == (() if id is None else (id,))
    assert projection.id_member == member
    assert projection.ids_usable is (id is None or id.isascii())


def test_id_in_a_header_that_no_header_can_hold_is_none() -> None:
    for odd in (b"", b"\xff", "é".encode(), b"x" * 2000):
        assert project(parse(b"{}", [(b"x-request-id", odd)])).ids == ()


@given(st.binary(max_size=200), st.lists(st.tuples(st.sampled_from([JSON[0], b"x-model"]), st.binary())))
def test_any_request_is_forwarded_unchanged(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """The engine refuses an invalid body."""
    request = FORMAT.parse(body, headers)
    sent = FORMAT.upstream(request, WORKER, Ids(("p",), ("p",)))
    assert (sent.method, sent.target, sent.body) == (b"POST", b"/base/v1/embeddings", body)
    assert b"x-model" not in dict(sent.headers)


@pytest.mark.parametrize("named", [[], [(b"x-request-id", b"p")]])
def test_engine_gets_the_dispatch_id_in_the_header_always(named: list[tuple[bytes, bytes]]) -> None:
    """Also if the client named none: without an id the engine could not abort the request."""
    sent = FORMAT.upstream(FORMAT.parse(b"{}", [JSON, *named]), WORKER, Ids(("p",), ("q",)))
    assert sent.headers == [JSON, (b"x-request-id", b"q")]


def test_id_in_the_body_is_replaced_where_it_is_not_safe_and_nothing_else_is() -> None:
    body = b'{"rid" : "p","x":1e-7, "rid":"p","messages":[{"rid":"p"}]}'
    request = FORMAT.parse(body, [JSON])
    assert FORMAT.upstream(request, WORKER, Ids(("p",), ("p",))).body == body
    sent = FORMAT.upstream(request, WORKER, Ids(("p",), ("q",)))
    assert sent.body == b'{"rid" : "q","x":1e-7, "rid":"q","messages":[{"rid":"p"}]}'
    assert dict(sent.headers)[b"x-request-id"] == b"q"
    other = b'{"request_id":"p"}'
    assert FORMAT.upstream(FORMAT.parse(other, [JSON]), WORKER, Ids(("p",), ("q",))).body == other


@pytest.mark.parametrize(
    ("body", "marks"),
    [
        (b'{"n":1,"prompt":"a","use_beam_search":false}', ""),
        (b'{"n":null,"prompt":[ 1, 2]}', ""),
        (b'{"n":2}', "several_samples"),
        (b'{"n":1.0}', "several_samples"),
        (b'{"prompt":["a"]}', "several"),
        (b'{"use_beam_search":true}', "beam_search"),
        (b'{"n":3,"prompt":[[1]],"use_beam_search":true}', "several several_samples beam_search"),
    ],
)
def test_request_of_several_prompts_or_replies_is_recognised(body: bytes, marks: str) -> None:
    """In doubt it counts as several: such a request is ended by closing its connection."""
    request = parse(body, [JSON])
    found = {
        "several": not request.one_prompt,
        "several_samples": request.several_samples,
        "beam_search": request.beam_search,
    }
    assert " ".join(mark for mark, is_so in found.items() if is_so) == marks


def test_settings_are_checked() -> None:
    assert FORMAT.configured({"passthrough_engine_errors": "true"}).name == "relayed"
    for options in ({"passthrough_engine_errors": "maybe"}, {"other": "1"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            FORMAT.configured(options)
