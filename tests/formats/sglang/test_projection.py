"""Parsing of requests, and the refusals."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.contract import Headers, Projection
from gateway.formats.sglang import FORMAT
from gateway.formats.sglang.body_fields import RESERVED
from tests.formats.sglang.support import parsed

IDS: dict[str, Any] = {"input_ids": [1, 2, 3]}
BATCH: dict[str, Any] = {"input_ids": [[1, 2], [3]]}


def projected(body: bytes | dict[str, Any], headers: Headers = ()) -> Projection:
    return FORMAT.project(parsed(body, headers))


def refusal(body: bytes | dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parsed(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "samples"),
    [
        (b'{"input_ids" : [ 1 ,\n2 ] }', 2, 1),
        (b'{"input_ids":[7]}', 1, 1),
        (b'{"input_ids":[]}', 0, 1),
        (b'{"input_ids":[[1,2],[3]]}', 3, 2),
        (b'{"input_ids":[[1]],"sampling_params":{"n":4}}', 1, 4),
        (b'{"input_ids":[[1],[2]],"sampling_params":[{"n":2},{"n":2}]}', 2, 4),
        (b'{"input_ids":[1],"sampling_params":{"n":0}}', 1, 1),
        (b'{"input_ids":[1],"sampling_params":{"n":4,"beam_width":4}}', 1, 1),
        (b'{"text":"hi"}', None, 1),
        (b'{"text":["a","b","c"]}', None, 3),
        (b'{"text":[]}', None, 0),
        (b'{"text":["a","b"],"input_ids":[[1],[2],[3]]}', 3, 2),
        (b'{"input_embeds":[[0.1,0.2],[1,2]]}', None, 1),
        (b'{"input_embeds":[[[0.1],[2]],[[1]]]}', None, 2),
        (b"{}", None, 1),
        (b'{"input_ids":[1],"input_ids":[1,2]}', 2, 1),
    ],
)
def test_prompt_is_counted(body: bytes, prompt_tokens: int | None, samples: int) -> None:
    found = projected(body)
    assert (found.prompt_tokens, found.samples) == (prompt_tokens, samples)


@pytest.mark.parametrize(
    ("params", "limit"),
    [
        ({"max_new_tokens": 5}, 5),
        ({"max_new_tokens": None}, None),
        ({"max_new_tokens": "5"}, None),
        (None, None),
        ([{"max_new_tokens": 5}, {"max_new_tokens": 9}], 9),
        ([{"max_new_tokens": 5}, {}], None),
    ],
)
def test_max_tokens_is_the_limit_of_the_request(params: Any, limit: int | None) -> None:
    """Of a batch the largest, if each prompt has one; a type that only the engine can judge is no limit."""
    prompts = BATCH if isinstance(params, list) else IDS
    assert projected(prompts | {"sampling_params": params}).max_tokens == limit


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        (b"{}", False),
        (b'{"stream":true}', True),
        (b'{"stream":"x","stream":true}', True),
        (b'{"\\u0073tream":true}', True),
    ],
)
def test_stream_is_read_as_the_engine_reads_it(body: bytes, stream: bool) -> None:
    assert projected(body).stream is stream


@pytest.mark.parametrize(
    ("more", "seen"),
    [
        ({"priority": 7}, {"priority": 7}),
        ({"priority": None}, {"priority": 0}),
        ({"priority": True}, {"priority": 0}),
        ({"lora_path": "adapter"}, {"lora": "adapter"}),
        ({"lora_path": ["a"]}, {"lora": None}),
        ({"cache_salt": "tenant"}, {"cache_salt": "tenant"}),
        ({"cache_salt": ""}, {"cache_salt": None}),
        ({}, {"priority": 0, "lora": None, "cache_salt": None, "dp_rank": None}),
    ],
)
def test_request_tells_routing(more: dict[str, Any], seen: dict[str, Any]) -> None:
    """A value of another type than usual is the engine's to judge, and missing here."""
    hints = projected(IDS | more).hints()
    assert {name: getattr(hints, name) for name in seen} == seen


@pytest.mark.parametrize(
    ("more", "model"), [({}, None), ({"model": "tiny"}, "tiny"), ({"model": ""}, None), ({"model": 5}, None)]
)
def test_model_is_a_name_or_none(more: dict[str, Any], model: str | None) -> None:
    assert projected(IDS | more).model == model


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        (b" 12 ", 12),
        (b"4294967295", 4294967295),
        (b"4294967296", None),
        (b"1_0", None),
        (b"", None),
        (b"\xb2", None),
        (b"9" * 5000, None),
    ],
)
def test_rank_header_is_a_number_of_32_bits_or_nothing(value: bytes, rank: int | None) -> None:
    assert projected(IDS, [(b"x-data-parallel-rank", value)]).hints().dp_rank == rank


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b'{"input_ids":[1,2,3]}', [1, 2, 3]),
        (b'{"input_ids":[[4,5],[6]]}', [4, 5]),
        (b'{"input_ids":[1,"a"]}', []),
        (b'{"input_ids":[["a"],[6]]}', []),
        (b'{"input_ids":"hello"}', []),
        (b'{"text":"hi"}', None),
    ],
)
def test_token_ids_are_those_of_the_first_prompt(body: bytes, ids: list[int] | None) -> None:
    token_ids = projected(body).hints().token_ids
    assert (None if token_ids is None else list(token_ids())) == ids


@pytest.mark.parametrize(
    ("body", "header", "ids"),
    [
        (IDS | {"rid": "job-1"}, b"other", ("job-1",)),
        (IDS | {"rid": ""}, b"other", ("",)),
        (IDS | {"rid": None}, b"other", ("other",)),
        (IDS, b" other ", ("other",)),
        (IDS, "é".encode(), ("é",)),
        (IDS, b"\xff", ("ÿ",)),
        (IDS, b" ", ()),
        (BATCH, b"other", ()),
        (BATCH | {"rid": "job"}, None, ("job",)),
        (BATCH | {"rid": ["job-x", "job-y"]}, None, ("job-x", "job-y")),
        (IDS | {"rid": ["job-1"], "sampling_params": {"n": 2}}, None, ("job-1",)),
        (b'{"rid":"a","rid":"job-2"}', None, ("job-2",)),
        (b'{"rid":5,"rid":"job-2"}', None, ("job-2",)),
    ],
)
def test_ids_are_what_the_client_named(
    body: bytes | dict[str, Any], header: bytes | None, ids: tuple[str, ...]
) -> None:
    headers = [] if header is None else [(b"x-request-id", header)]
    assert projected(body, headers).ids == ids


@pytest.mark.parametrize(
    ("rid", "usable"),
    [("job-1", True), ("1", False), ("beef", False), ("HEALTH_CHECK_1\n2", False)],
)
def test_id_that_could_begin_one_of_the_engines_own_is_not_usable(rid: str, usable: bool) -> None:
    assert projected(IDS | {"rid": rid}).ids_usable is usable


def test_id_in_a_session_stays_what_later_turns_will_name() -> None:
    body = IDS | {"rid": "1", "session_params": {"id": "s"}}
    assert projected(body).ids_usable
    assert not projected(body | {"session_params": None}).ids_usable


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"input_ids":[1,,2]}',
        b'{"temperature":NaN}',
        b'\xef\xbb\xbf{"text":"bom"}',
        b'{"rid":"\\ud800"}',
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"rid":5,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert refusal(body).status == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (IDS | {"stream": None}, "stream"),
        (IDS | {"stream": "true"}, "stream"),
        (IDS | {"rid": 5}, "rid"),
        (IDS | {"rid": [1]}, "rid"),
        (IDS | {"sampling_params": {"n": "2"}}, "sampling_params.n"),
        (IDS | {"sampling_params": {"n": True}}, "sampling_params.n"),
        (BATCH | {"sampling_params": [{"n": "2"}, {}]}, "sampling_params.n"),
        (b'{"sampling_params":{"n":' + b"9" * 5000 + b"}}", "sampling_params.n"),
    ],
)
def test_member_the_gateway_needs_is_refused_in_the_wrong_type(body: Any, param: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert param in error.message


@pytest.mark.parametrize("key", RESERVED)
@pytest.mark.parametrize("value", [None, 0, "x", [1]])
def test_reserved_key_is_refused_by_presence(key: str, value: Any) -> None:
    error = refusal(IDS | {key: value})
    assert error.param == key
    assert key in error.message
    assert ("X-Data-Parallel-Rank" in error.message) is (key in ("data_parallel_rank", "routed_dp_rank"))


# Refused: what crashes the engine or makes it answer 500.

#: (rule, None for an ordinary mistake; the field named) -> bodies.
HARMFUL: dict[tuple[str | None, str], list[bytes]] = {
    ("negative_token_id", "input_ids"): [
        b'{"input_ids":[1,-1]}',
        b'{"text":"hi","input_ids":[-1]}',
    ],
    ("empty_batch_item", "input_ids"): [
        b'{"input_ids":[[1],[]]}',
        b'{"input_ids":[[]]}',
    ],
    ("empty_text", "text"): [
        b'{"text":""}',
        b'{"text":["a",""]}',
        b'{"text":"","input_embeds":[[0.1]]}',
    ],
    ("logprob_start_below_minus_one", "logprob_start_len"): [
        b'{"input_ids":[1],"return_logprob":true,"logprob_start_len":-2}',
        b'{"input_ids":[[1],[2]],"return_logprob":true,"logprob_start_len":[0,-2]}',
        b'{"input_ids":[[1],[2]],"return_logprob":[0,true],"logprob_start_len":-9}',
    ],
    (None, "input_embeds"): [b'{"input_embeds":[]}', b'{"input_embeds":[[]]}'],
    (None, "text"): [
        b'{"text":"a","input_ids":[[1]]}',
        b'{"text":["a"],"input_ids":[1]}',
    ],
    (None, "rid"): [
        b'{"input_ids":[1],"rid":["a"]}',
        b'{"input_ids":[[1],[2]],"rid":["a"]}',
        b'{"input_ids":[[1],[2]],"rid":["a","a"]}',
    ],
    (None, "sampling_params"): [
        b'{"input_ids":[1],"sampling_params":[{}]}',
        b'{"input_ids":[[1],[2]],"sampling_params":[{}]}',
    ],
    (None, "sampling_params.n"): [b'{"input_ids":[[1],[2]],"sampling_params":{"n":0}}'],
    (None, "return_logprob"): [b'{"input_ids":[[1],[2]],"return_logprob":[true]}'],
    (None, "lora_path"): [b'{"input_ids":[[1],[2]],"lora_path":["a"]}'],
    (None, "video_data"): [b'{"input_ids":[[1],[2]],"video_data":[]}'],
}


@pytest.mark.parametrize(
    ("rule", "param", "body"), [(*key, body) for key, bodies in HARMFUL.items() for body in bodies]
)
def test_harmful_body_is_refused_with_its_field_and_rule(rule: str | None, param: str, body: bytes) -> None:
    """A rule is counted; an ordinary mistake has none."""
    error = refusal(body)
    assert (error.rule, error.param) == (rule, param)
    assert param in error.message


@pytest.mark.parametrize(
    "body",
    [
        b'{"input_ids":[0,-0]}',
        b'{"input_ids":[]}',
        b'{"input_ids":[[1],[]],"session_params":{"id":"s"}}',
        b'{"text":"","session_params":{"id":"s"}}',
        b'{"text":"","audio_data":"https://host/a.wav"}',
        b'{"text":"","input_ids":[1]}',
        b'{"input_ids":[1],"logprob_start_len":-2}',
        b'{"input_ids":[1],"return_logprob":false,"logprob_start_len":-2}',
        b'{"input_ids":[1],"return_logprob":true,"logprob_start_len":-1}',
        b'{"input_ids":[1],"return_logprob":true,"logprob_start_len":null}',
        b'{"input_ids":[[1],[2]],"return_logprob":[false,true],"logprob_start_len":[-2,0]}',
        b'{"input_ids":[[1],[2]],"sampling_params":[{},{},{}]}',
        b'{"input_ids":[[1],[2]],"lora_path":["a",null]}',
        b'{"input_ids":[[1],[2]],"token_ids_logprob":[5]}',
        b'{"input_ids":[[1],[2]],"image_data":[]}',
        b'{"input_ids":"hello"}',
        b'{"input_ids":[1,[2]]}',
        b'{"input_ids":[9223372036854775808]}',
        b'{"sampling_params":{"temperature":"hot","nonsense":1}}',
        b'{"input_ids":[1],"priority":"3","stop":7,"unknown":{"a":[1e-7,123456789012345678901234567890]}}',
        b'{"x":"\xff"}',
        b'{"input_ids":[1],"sampling_params":{"custom_params":{"routed_dp_rank":1}}}',
    ],
)
def test_body_that_the_engine_can_judge_reaches_it(body: bytes) -> None:
    assert parsed(body).body == body
