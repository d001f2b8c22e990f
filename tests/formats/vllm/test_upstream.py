"""What goes to a worker: the generate request, its abort; and a client's own abort call."""

from __future__ import annotations

import json
import re

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.contract import Ids
from gateway.formats.optional import AbortTarget, EngineId
from gateway.formats.vllm import FORMAT
from tests.formats.support import PRIVATE, View
from tests.formats.vllm.support import recorded, request

ODD = b'{ "token_ids" :[1,  2],"x":123456789012345678901234567890,"y":1e-7,"y":2, "request_id": "mine"}\n'


def test_body_is_never_touched() -> None:
    """Unknown keys, big numbers, odd spaces and duplicate keys leave as they came, whatever the id."""
    asked = request(ODD)
    for ids in (PRIVATE, Ids(("mine",), ("mine",))):
        assert FORMAT.upstream(asked, View(), ids).body is ODD


def test_dispatch_id_replaces_every_line_of_the_client() -> None:
    lines = [(b"x-request-id", b"a"), (b"x-other", b"1"), (b"x-request-id", b"b")]
    sent = FORMAT.upstream(request(headers=lines), View(), PRIVATE)
    assert sent.headers == [(b"x-other", b"1"), (b"x-request-id", PRIVATE.dispatch[0].encode())]


def test_id_from_the_body_goes_out_in_the_header() -> None:
    """A safe id of the client's is set in the header too, where it is what the body says already."""
    sent = FORMAT.upstream(request(ODD), View(), Ids(("mine",), ("mine",)))
    assert sent.headers == [(b"x-request-id", b"mine")]


def test_abort_names_the_engines_own_spelling() -> None:
    """The bare id would be answered 200 and do nothing."""
    asked = request(headers=[(b"authorization", b"Bearer mine")])
    (abort,) = FORMAT.abort(View(prefix=b"/p"), asked, PRIVATE)
    assert (abort.method, abort.target) == (b"POST", b"/p/inference/v1/abort_requests")
    assert json.loads(abort.body) == {"request_ids": ["generate-tokens-" + PRIVATE.dispatch[0]]}
    assert abort.headers == [(b"content-type", b"application/json"), (b"authorization", b"Bearer mine")]


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b'{"request_ids":["a","b"]}', ("a", "b")),
        (b'{"request_ids":"a"}', ("a",)),
        (b'{"request_ids":[]}', ()),
        (b'{"request_ids":[""],"x":1}', ("",)),
    ],
)
def test_client_abort_names_public_ids(body: bytes, ids: tuple[str, ...]) -> None:
    assert FORMAT.aborted_ids(body) == AbortTarget(ids=ids)


def test_client_abort_in_the_engines_spelling_means_what_the_engine_calls_so() -> None:
    body = b'{"request_ids":["generate-tokens-a","chatcmpl-a","b","cmpl-a-2"]}'
    spelled = (EngineId("a"), EngineId("a", "/v1/chat/completions"), EngineId("a", "/v1/completions", 2))
    assert FORMAT.aborted_ids(body) == AbortTarget(ids=("b",), engine_ids=spelled)


def test_parts_of_a_request_of_one_prompt_are_none() -> None:
    assert FORMAT.abort(View(), request(), PRIVATE._replace(parts=(0,))) == ()


ENGINES = json.loads(recorded("control")["abort-endpoint-missing-field"]["body"])["error"]["message"]


@pytest.mark.parametrize(
    ("bodies", "message", "param"),
    [
        ([b"{}", b'{"request_ids":null}', b"[]", b"null", b"7"], f"^{re.escape(ENGINES)}$", None),
        ([b"", b"{", b"\xff", b"[" * 100_000, b'{"request_ids":["\xff"]}'], "JSON decode error", None),
        ([b'{"request_ids":7}', b'{"request_ids":{}}', b'{"request_ids":[1]}'], None, "request_ids"),
    ],
)
def test_client_abort_that_names_no_ids_is_refused(
    bodies: list[bytes], message: str | None, param: str | None
) -> None:
    """In the engine's words where it has any."""
    for body in bodies:
        with pytest.raises(InvalidRequest, match=message) as caught:
            FORMAT.aborted_ids(body)
        assert param in (None, caught.value.param)
