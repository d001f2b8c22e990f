"""What goes to a worker: the generate request, its abort; and a client's own abort call."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.contract import Headers, Ids, UpstreamRequest
from gateway.formats.optional import AbortTarget, EngineId
from tests.formats.dialects import BOTH, DIALECTS, Dialect
from tests.formats.support import HEX, PRIVATE, View, records, run_steps

SGLANG, VLLM = (dialect.format for dialect in DIALECTS.values())
CLIENT, WORKER = (b"authorization", b"Bearer client"), (b"authorization", b"Bearer worker")
KIND, BODY = (b"content-type", b"application/json"), b'{"input_ids":[1],"token_ids":[1],"sampling_params":{}}'
ROUTES = {
    "sglang": (b"/generate", b"/abort_request", {"rid": HEX}),
    "vllm": (
        b"/inference/v1/generate",
        b"/inference/v1/abort_requests",
        # The bare id would be answered 200 and do nothing.
        {"request_ids": [f"generate-tokens-{HEX}"]},
    ),
}
ODD = (
    b' { "input_ids" : [1,  2],"x":123456789012345678901234567890,"y":1e-7,"y":[{"rid":"in"}], "z":"\\u00e9" '
)


def same(*names: str) -> Ids:
    return Ids(names, names)


def sent(
    format: Any, body: bytes, ids: Ids, headers: Headers = (), worker: View | None = None
) -> UpstreamRequest:
    call: UpstreamRequest = format.upstream(format.parse(body, headers), worker or View(), ids)
    return call


@BOTH
@pytest.mark.parametrize(("worker", "key"), [(View(b"/a"), CLIENT), (View(b"/a", WORKER[1]), WORKER)])
def test_calls_are_posts_below_the_workers_prefix_with_its_key_or_else_the_clients(
    dialect: Dialect, worker: View, key: tuple[bytes, bytes]
) -> None:
    generate, abort, named = ROUTES[dialect.name]
    request = dialect.format.parse(BODY, [CLIENT])
    calls = [
        dialect.format.upstream(request, worker, PRIVATE),
        *dialect.format.abort(worker, request, PRIVATE),
    ]
    assert [(call.method, call.target) for call in calls] == [
        (b"POST", b"/a" + generate),
        (b"POST", b"/a" + abort),
    ]
    assert [[line for line in call.headers if line[0] == key[0]] for call in calls] == [[key], [key]]
    assert (json.loads(calls[1].body), calls[1].headers) == (named, [KIND, key])


@pytest.mark.parametrize(
    ("body", "ids", "wanted"),
    [
        (ODD + b',"rid":"job-1"}', same("job-1"), None),
        (ODD + b',"rid":"first","r\\u0069d" : "job\\u002d1"}', same("job-1"), None),
        (b'{"input_ids":[[1],[2]],"rid":"job"}', same("job"), None),
        (b'{"input_ids":[[1],[2]],"rid":["job-x","job-y"]}', same("job-x", "job-y"), None),
        (ODD + b"}", same("job-1"), ODD.replace(b"{", b'{"rid":"job-1",', 1) + b"}"),
        (b"{}", same("job-1"), b'{"rid":"job-1"}'),
        # The engine numbers the prompts of a batch itself.
        (b'{"input_ids":[[1],[2]]}', same("job"), b'{"rid":"job","input_ids":[[1],[2]]}'),
        (
            b'{"input_ids":[[1],[2]],"rid":["a", "b"]}',
            Ids(("a", "b"), ("p", "q")),
            b'{"input_ids":[[1],[2]],"rid":["p","q"]}',
        ),
        (b'{"text":["x"],"rid":["a"]}', Ids(("a",), ("p",)), b'{"text":["x"],"rid":["p"]}'),
        (b'{"text":[],"rid":[]}', Ids(("a",), ("p",)), b'{"text":[],"rid":"p"}'),
    ],
)
def test_sglang_gets_the_id_in_the_body_and_the_rest_as_it_was(
    body: bytes, ids: Ids, wanted: bytes | None
) -> None:
    """A list of ids is replaced by a list, unless it is empty."""
    assert sent(SGLANG, body, ids).body == (body if wanted is None else wanted)


def test_id_by_header_is_put_into_the_body_of_sglang() -> None:
    headers = [(b"x-request-id", 'naïve"'.encode())]
    assert json.loads(sent(SGLANG, b'{"text":"a"}', same('naïve"'), headers).body)["rid"] == 'naïve"'


RANK = b"x-data-parallel-rank"


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("body", "rank", "wanted"),
    [
        (b'{"rid":"a", "text":"x"}', b"3", b'{"routed_dp_rank":3,"rid":"a", "text":"x"}'),
        (b'{"text":"x" }', b"3", b'{"rid":"a","routed_dp_rank":3,"text":"x" }'),
        (b'{"rid":"a","routed_dp_rank": 1 }', b" 0 ", b'{"rid":"a","routed_dp_rank": 0 }'),
        (b'{"routed_dp_rank":null,"rid":"b","x":1}', b"2", b'{"routed_dp_rank":2,"rid":"a","x":1}'),
        (
            b'{"rid":"a","data_parallel_rank":1}',
            b"2",
            b'{"routed_dp_rank":2,"rid":"a","data_parallel_rank":1}',
        ),
        (b"{ }", b"7", b'{"rid":"a","routed_dp_rank":7 }'),
        # What the engine reads already says the same, or nobody named a rank.
        (b'{"rid":"a", "routed_dp_rank":3}', b"3", b'{"rid":"a", "routed_dp_rank":3}'),
        (b'{"rid":"a", "routed_dp_rank":"x"}', None, b'{"rid":"a", "routed_dp_rank":"x"}'),
        (b'{"rid":"a", "routed_dp_rank":9}', None, b'{"rid":"a", "routed_dp_rank":9}'),
    ],
)
def test_rank_by_header_is_put_into_the_body_of_sglang(
    body: bytes, rank: bytes | None, wanted: bytes, large: bool
) -> None:
    """SGLang reads the header on its OpenAI routes only, where it takes precedence as well."""
    headers = [] if rank is None else [(RANK, rank)]
    read = run_steps(SGLANG.parse_in_steps(body, headers)) if large else SGLANG.parse(body, headers)
    call = SGLANG.upstream(read, View(), same("a"))
    found = call.body + b"".join(call.rest)
    assert json.loads(found) == json.loads(wanted)
    assert sorted(found.replace(b" ", b"")) == sorted(wanted.replace(b" ", b""))
    assert len(found) == len(wanted)
    assert list(call.headers) == headers


@pytest.mark.parametrize("rank", [b"3", b"x"])
def test_rank_reaches_vllm_by_the_header_it_reads(rank: bytes) -> None:
    call = sent(VLLM, BODY, same("a"), [(RANK, rank)])
    assert (call.body, dict(call.headers)[RANK]) == (BODY, rank)


@pytest.mark.parametrize("ids", [PRIVATE, same("mine")])
def test_vllm_gets_the_id_in_one_header_and_the_body_untouched(ids: Ids) -> None:
    """Unknown keys, big numbers, odd spaces and duplicate keys leave as they came."""
    body = ODD + b', "request_id": "mine"}\n'
    lines = [(b"x-request-id", b"a"), (b"x-other", b"1"), (b"x-request-id", b"b")]
    call = sent(VLLM, body, ids, lines)
    assert call.body is body
    assert call.headers == [(b"x-other", b"1"), (b"x-request-id", ids.dispatch[0].encode())]


BATCH = b'{"text":["a","b"],"rid":"x"}'


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
        # An abort of some prompts names those there are.
        (BATCH, Ids(("x",), ("x",), (0, 1, 2)), ["x_0", "x_1"]),
        (BATCH, Ids(("x",), ("x",), (2,)), []),
        (b'{"text":["a"],"rid":["x"]}', Ids(("x",), ("x",), (0,)), []),
        (b'{"text":"a","rid":"x"}', Ids(("x",), ("x",), (0,)), []),
        (BATCH[:-1] + b',"sampling_params":{"n":2}}', Ids(("x",), ("x",), (0,)), []),
    ],
)
def test_abort_names_each_id_of_the_exchange_at_sglang(body: bytes, ids: Ids, rids: list[str]) -> None:
    calls = SGLANG.abort(View(), SGLANG.parse(body, ()), ids)
    assert [json.loads(call.body) for call in calls] == [{"rid": rid} for rid in rids]


def test_parts_of_a_request_of_one_prompt_are_none() -> None:
    assert VLLM.abort(View(), VLLM.parse(BODY, ()), PRIVATE._replace(parts=(0,))) == ()


@pytest.mark.parametrize(
    ("format", "body", "target"),
    [
        (SGLANG, b'{"rid":"job-1","abort_all":false,"x":1}', AbortTarget(ids=("job-1",))),
        (SGLANG, b'{"abort_all":true}', AbortTarget(everything=True)),
        (SGLANG, b'{"rid":"","abort_all":true}', AbortTarget(everything=True)),
        (SGLANG, b'{"rid":""}', AbortTarget()),
        (SGLANG, b"{}", AbortTarget()),
        *(
            (SGLANG, json.dumps({"rid": name}).encode(), AbortTarget(ids=(name,)))
            for name in ("a_", "_0", "a_01", "a_-1", "a_1 ", "a_1234567890", "a0", "a_\u0661")
        ),
        (VLLM, b'{"request_ids":["a","b"]}', AbortTarget(ids=("a", "b"))),
        (VLLM, b'{"request_ids":"a"}', AbortTarget(ids=("a",))),
        (VLLM, b'{"request_ids":[]}', AbortTarget()),
        *(
            (VLLM, json.dumps({"request_ids": name}).encode(), AbortTarget(ids=(name,)))
            for name in ("cmpl-0", "cmpl-a", "cmpl-a-01", "cmpl-a-x", "CHATCMPL-a", "Generate-tokens-a", "")
        ),
        (
            VLLM,
            b'{"request_ids":"generate-tokens-generate-tokens-a"}',
            AbortTarget(engine_ids=(EngineId("generate-tokens-a"),)),
        ),
        (VLLM, b'{"request_ids":[""],"x":1}', AbortTarget(ids=("",))),
        (
            VLLM,
            b'{"request_ids":["generate-tokens-a","chatcmpl-a","b","cmpl-a-2"]}',
            AbortTarget(
                ids=("b",),
                engine_ids=(
                    EngineId("a"),
                    EngineId("a", "/v1/chat/completions"),
                    EngineId("a", "/v1/completions", 2),
                ),
            ),
        ),
    ],
)
def test_abort_call_of_a_client_names_its_ids_or_means_what_the_engine_calls_so(
    format: Any, body: bytes, target: AbortTarget
) -> None:
    assert format.aborted_ids(body) == target


@pytest.mark.parametrize("part", [0, 7, 10, 999_999_999])
def test_numbered_name_means_a_prompt_of_a_batch_as_well(part: int) -> None:
    target = SGLANG.aborted_ids(b'{"rid":"a_b_%d"}' % part)
    spelled = (EngineId("a_b", None, part), EngineId("a_b", "/v1/completions", part))
    assert target == AbortTarget(ids=(f"a_b_{part}",), engine_ids=spelled)


ENGINES = records("vllm", "control")["abort-endpoint-missing-field"]["body"]
MISSING = f"^{re.escape(json.loads(ENGINES)['error']['message'])}$"


@pytest.mark.parametrize(
    ("format", "bodies", "message", "param"),
    [
        (SGLANG, [b"", b"[]", b"{", b'"job"', b"[" * 100_000, b'{"rid":["a"]}', b'{"rid":1}'], None, None),
        (SGLANG, [b'{"abort_all":"yes"}'], None, None),
        (VLLM, [b"{}", b'{"request_ids":null}', b"[]", b"null", b"7"], MISSING, None),
        (VLLM, [b"", b"{", b"\xff", b"[" * 100_000, b'{"request_ids":["\xff"]}'], "JSON decode error", None),
        (VLLM, [b'{"request_ids":7}', b'{"request_ids":{}}', b'{"request_ids":[1]}'], None, "request_ids"),
    ],
)
def test_abort_call_that_names_nothing_is_refused(
    format: Any, bodies: list[bytes], message: str | None, param: str | None
) -> None:
    """In the engine's words where it has any."""
    for body in bodies:
        with pytest.raises(InvalidRequest, match=message) as caught:
            format.aborted_ids(body)
        assert param in (None, caught.value.param)
