"""Requests that are refused here, and those that the engine judges."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.sglang.body_fields import RESERVED
from gateway.formats.sglang.request import BodyFields, Sampling
from tests.formats.sglang.support import parsed

IDS: dict[str, Any] = {"input_ids": [1, 2, 3]}
BATCH: dict[str, Any] = {"input_ids": [[1, 2], [3]]}


def refusal(body: bytes | dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parsed(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
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
@pytest.mark.parametrize("value", [0, "x", [1]])
def test_reserved_key_is_refused_by_presence(key: str, value: Any) -> None:
    error = refusal(IDS | {key: value})
    assert error.param == key
    assert key in error.message


@pytest.mark.parametrize("large", [False, True])
def test_member_that_is_null_is_not_set(large: bool) -> None:
    """As clients send it that dump all fields of a request class."""
    members = dict.fromkeys(BodyFields.__struct_fields__) | IDS
    members["sampling_params"] = dict.fromkeys(Sampling.__struct_fields__)
    request = parsed(members, steps=large)
    assert (request.rid, request.ids, request.stream, request.samples, request.batch) == (
        None,
        (),
        False,
        1,
        None,
    )
    batch = parsed(members | {"input_ids": [[1], [2]], "sampling_params": [{"n": None}, None]}, steps=large)
    assert (batch.samples, batch.batch) == (2, 2)


@pytest.mark.parametrize("rank", [b"", b"x", b"-1", b"1.0", b"4294967296", b"1_0"])
def test_malformed_rank_in_the_header_is_refused(rank: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(IDS, [(b"x-data-parallel-rank", rank)])
    assert caught.value.param == "X-Data-Parallel-Rank"


#: What crashes the engine or makes it answer 500: (rule, None for an ordinary mistake; the field) -> bodies.
HARMFUL: dict[tuple[str | None, str], list[bytes]] = {
    ("negative_token_id", "input_ids"): [b'{"input_ids":[1,-1]}', b'{"text":"hi","input_ids":[-1]}'],
    ("empty_batch_item", "input_ids"): [b'{"input_ids":[[1],[]]}', b'{"input_ids":[[]]}'],
    ("empty_text", "text"): [b'{"text":""}', b'{"text":["a",""]}', b'{"text":"","input_embeds":[[0.1]]}'],
    ("logprob_start_below_minus_one", "logprob_start_len"): [
        b'{"input_ids":[1],"return_logprob":true,"logprob_start_len":-2}',
        b'{"input_ids":[[1],[2]],"return_logprob":true,"logprob_start_len":[0,-2]}',
        b'{"input_ids":[[1],[2]],"return_logprob":[0,true],"logprob_start_len":-9}',
    ],
    (None, "input_embeds"): [b'{"input_embeds":[]}', b'{"input_embeds":[[]]}'],
    (None, "text"): [b'{"text":"a","input_ids":[[1]]}', b'{"text":["a"],"input_ids":[1]}'],
    (None, "rid"): [
        b'{"input_ids":[1],"rid":["a"]}',
        b'{"input_ids":[[1],[2]],"rid":["a"]}',
        b'{"input_ids":[[1],[2]],"rid":["a","a"]}',
    ],
    (None, "sampling_params"): [
        b'{"input_ids":[1],"sampling_params":[]}',
        b'{"input_ids":[[1],[2]],"sampling_params":[{}]}',
    ],
    (None, "sampling_params.n"): [b'{"input_ids":[[1],[2]],"sampling_params":{"n":0}}'],
    (None, "return_logprob"): [b'{"input_ids":[[1],[2]],"return_logprob":[true]}'],
    (None, "top_logprobs_num"): [b'{"input_ids":[[1],[2]],"top_logprobs_num":[]}'],
    (None, "video_data"): [b'{"input_ids":[[1],[2]],"video_data":["https://host/a.mp4"]}'],
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
        b'\xef\xbb\xbf{"input_ids":[1]}',
        '{"input_ids":[1]}'.encode("utf-16"),
        '{"input_ids":[1]}'.encode("utf-32"),
        b'{"input_ids":[1],"x":NaN}',
        b'{"text":"\\ud800"}',
    ],
)
def test_text_that_the_engine_does_not_read_either_is_refused(body: bytes) -> None:
    """SGLang 0.5.22 reads a body with orjson, which knows standard JSON in UTF-8 only."""
    assert "JSON" in refusal(body).message


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
        b'{"input_ids":[1],"sampling_params":[{}]}',
        b'{"text":"a","sampling_params":[{"max_new_tokens":4},{}]}',
        b'{"input_embeds":[[0.1]],"sampling_params":[{"n":0}]}',
        b'{"input_ids":[[1],[2]],"lora_path":["a"],"lora_id":[],"return_sampling_mask":[true]}',
        b'{"input_ids":[[1],[2]],"video_data":[],"audio_data":[]}',
        b'{"input_ids":[[1],[2]],"token_ids_logprob":[5]}',
        b'{"input_ids":[[1],[2]],"image_data":[]}',
        b'{"input_ids":"hello"}',
        b'{"input_ids":[1,[2]]}',
        b'{"input_ids":[9223372036854775808]}',
        b'{"sampling_params":{"temperature":"hot","nonsense":1}}',
        b'{"input_ids":[1],"priority":"3","stop":7,"unknown":{"a":[1e-7,123456789012345678901234567890]}}',
        b'{"x":"\xff"}',
        b'{"input_ids":[1],"routed_dp_rank":9,"data_parallel_rank":"x"}',
        b'{"input_ids":[1],"sampling_params":{"custom_params":{"bootstrap_room":1}}}',
    ],
)
def test_body_that_the_engine_can_judge_reaches_it(body: bytes) -> None:
    assert parsed(body).body == body
