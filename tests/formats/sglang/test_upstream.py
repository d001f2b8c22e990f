"""The request and the aborts sent to a worker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.contract import Headers, Ids, UpstreamRequest
from gateway.formats.optional import AbortTarget, EngineId
from gateway.formats.sglang import FORMAT
from tests.formats.sglang.support import parsed, same
from tests.formats.support import HEX, PRIVATE, View

ODD = (
    b' { "input_ids" : [1,  2],"x":123456789012345678901234567890,"y":1e-7,"y":[{"rid":"in"}], "z":"\\u00e9" '
)


def sent(body: bytes, ids: Ids, headers: Headers = (), worker: View | None = None) -> UpstreamRequest:
    return FORMAT.upstream(parsed(body, headers), worker or View(), ids)


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (ODD + b',"rid":"job-1"}', same("job-1")),
        (ODD + b',"rid":"first","r\\u0069d" : "job\\u002d1"}', same("job-1")),
        (b'{"input_ids":[[1],[2]],"rid":"job"}', same("job")),
        (b'{"input_ids":[[1],[2]],"rid":["job-x","job-y"]}', same("job-x", "job-y")),
    ],
)
def test_body_that_has_the_id_is_sent_as_it_is(body: bytes, ids: Ids) -> None:
    assert sent(body, ids).body == body


def test_body_without_an_id_gets_one_in_front() -> None:
    assert sent(ODD + b"}", same("job-1")).body == ODD.replace(b"{", b'{"rid":"job-1",', 1) + b"}"
    assert sent(b"{}", same("job-1")).body == b'{"rid":"job-1"}'


def test_body_of_a_batch_without_an_id_gets_one_string() -> None:
    """The engine numbers the items itself."""
    assert (
        sent(b'{"input_ids":[[1],[2]]}', same(HEX)).body
        == b'{"rid":"%b","input_ids":[[1],[2]]}' % HEX.encode()
    )


@pytest.mark.parametrize(
    ("body", "dispatch", "wanted"),
    [
        (b'{"input_ids":[[1],[2]],"rid":["a", "b"]}', ("p", "q"), b'{"input_ids":[[1],[2]],"rid":["p","q"]}'),
        (b'{"text":["x"],"rid":["a"]}', ("p",), b'{"text":["x"],"rid":["p"]}'),
        (b'{"text":[],"rid":[]}', ("p",), b'{"text":[],"rid":"p"}'),
    ],
)
def test_list_of_ids_is_replaced_by_a_list_unless_it_is_empty(
    body: bytes, dispatch: tuple[str, ...], wanted: bytes
) -> None:
    assert sent(body, Ids(("a", "b")[: len(dispatch)], dispatch)).body == wanted


def test_id_by_header_is_put_into_the_body() -> None:
    headers = [(b"x-request-id", 'naïve"'.encode())]
    assert json.loads(sent(b'{"text":"a"}', same('naïve"'), headers).body)["rid"] == 'naïve"'


@given(
    st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text() | st.lists(st.integers(0))),
    st.none() | st.text(),
    st.text(),
)
def test_engine_reads_the_dispatch_id_and_the_rest_as_it_was(
    members: dict[str, Any], rid: str | None, dispatch: str
) -> None:
    document = {"input_ids": [1]} | {"x" + key: value for key, value in members.items()}
    body = json.dumps(document | ({} if rid is None else {"rid": rid})).encode()
    received = json.loads(sent(body, Ids((rid or "",), (dispatch,))).body)
    assert received == document | {"rid": dispatch}


def aborted(body: bytes, ids: Ids) -> list[str]:
    requests = FORMAT.abort(View(), parsed(body), ids)
    assert all((r.method, r.target) == (b"POST", b"/abort_request") for r in requests)
    return [json.loads(request.body)["rid"] for request in requests]


@pytest.mark.parametrize(
    ("body", "ids", "rids"),
    [
        (b'{"text":"a"}', same("job-1"), ["job-1"]),
        (b'{"text":"a","rid":"job-1"}', PRIVATE, [HEX]),
        (b'{"text":["a","b"],"rid":"job-1"}', PRIVATE, [f"{HEX}_0", f"{HEX}_1"]),
        (b'{"text":["a","b"],"rid":["job","job-1"]}', Ids(("job", "job-1"), ("p", "q")), ["p", "q"]),
        (b'{"text":"a","sampling_params":{"n":2}}', same("job-1"), []),
        (b'{"text":"a","sampling_params":{"n":2,"beam_width":2}}', same("job-1"), ["job-1"]),
        (b'{"text":[]}', same("x"), []),
    ],
)
def test_abort_names_each_id_of_the_exchange_at_the_engine(body: bytes, ids: Ids, rids: list[str]) -> None:
    assert aborted(body, ids) == rids


def test_abort_does_not_name_abort_all() -> None:
    (request,) = FORMAT.abort(View(b"/p"), parsed(b'{"text":"a"}'), same("job-1"))
    assert (request.target, request.body) == (b"/p/abort_request", b'{"rid":"job-1"}')
    assert list(request.headers) == [(b"content-type", b"application/json")]


@pytest.mark.parametrize(
    ("body", "target"),
    [
        (b'{"rid":"job-1","abort_all":false,"x":1}', AbortTarget(ids=("job-1",))),
        (b'{"abort_all":true}', AbortTarget(everything=True)),
        (b'{"rid":"","abort_all":true}', AbortTarget(everything=True)),
        (b'{"rid":""}', AbortTarget()),
        (b"{}", AbortTarget()),
    ],
)
def test_abort_call_of_a_client_is_parsed(body: bytes, target: AbortTarget) -> None:
    assert FORMAT.aborted_ids(body) == target


@pytest.mark.parametrize("part", [0, 7, 10, 999_999_999])
def test_numbered_name_means_a_prompt_of_a_batch_as_well(part: int) -> None:
    target = FORMAT.aborted_ids(b'{"rid":"a_b_%d"}' % part)
    spelled = (EngineId("a_b", None, part), EngineId("a_b", "/v1/completions", part))
    assert target == AbortTarget(ids=(f"a_b_{part}",), engine_ids=spelled)


@pytest.mark.parametrize("name", ["a_", "_0", "a_01", "a_-1", "a_1 ", "a_1234567890", "a0", "a_\u0661"])
def test_name_without_a_number_means_itself_alone(name: str) -> None:
    assert FORMAT.aborted_ids(json.dumps({"rid": name}).encode()) == AbortTarget(ids=(name,))


@pytest.mark.parametrize(
    ("body", "parts", "rids"),
    [
        (b'{"text":["a","b"],"rid":"x"}', (0, 1, 2), ["x_0", "x_1"]),
        (b'{"text":["a","b"],"rid":"x"}', (2,), []),
        (b'{"text":["a"],"rid":["x"]}', (0,), []),
        (b'{"text":"a","rid":"x"}', (0,), []),
        (b'{"text":["a","b"],"rid":"x","sampling_params":{"n":2}}', (0,), []),
    ],
)
def test_abort_of_some_prompts_names_those_there_are(
    body: bytes, parts: tuple[int, ...], rids: list[str]
) -> None:
    assert aborted(body, Ids(("x",), ("x",), parts)) == rids


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'"job"', b'{"rid":["a"]}', b'{"rid":1}', b'{"abort_all":"yes"}', b"[" * 100_000],
)
def test_abort_call_that_names_nothing_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        FORMAT.aborted_ids(body)
