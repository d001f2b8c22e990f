"""What routing, ids and metrics may know of a request is what the engine reads in it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.contract import Projection
from gateway.testing.damage import ANY_JSON
from tests.formats.dialects import DIALECTS

IDS: dict[str, Any] = {"input_ids": [1, 2, 3]}
BATCH: dict[str, Any] = {"input_ids": [[1, 2], [3]]}
JOB: dict[str, Any] = {"rid": "job-1"}
#: A name of this many bytes is the longest that goes into a header.
LONGEST = 1024
VLLM = DIALECTS["vllm"].format


def known(projection: Projection, name: str) -> Any:
    if name in Projection._fields:
        return getattr(projection, name)
    value = getattr(projection.hints(), name)
    return list(value()) if name == "token_ids" and value is not None else value


def named(value: bytes) -> tuple[bytes, bytes]:
    return (b"x-request-id", value)


#: Values of other types than text, and the text of no name.
ODD: list[Any] = ["", None, 7, [], {"a": 1}, True]
#: Values of the header of a rank, for both engines.
RANKS: list[tuple[Any, ...]] = [
    ({}, (b"x-data-parallel-rank", b" 12\t"), 12),
    ({}, (b"x-data-parallel-rank", b"4294967295"), 4294967295),
    *(
        ({}, (b"x-data-parallel-rank", odd), None)
        for odd in (b"4294967296", b"-1", b"1_0", b"", b"\xb2", b"9" * 5000)
    ),
]
#: Engine, promise and members -> rows of a body, header lines if there are any, and the value of each member.
TABLE: dict[tuple[str, str, str], list[tuple[Any, ...]]] = {
    ("sglang", "rank is that of the header, else of the body", "dp_rank"): [
        *RANKS[:2],
        ({"routed_dp_rank": 3}, 3),
        ({"data_parallel_rank": 3, "routed_dp_rank": None}, 3),
        ({"routed_dp_rank": 3, "data_parallel_rank": 4}, (b"x-data-parallel-rank", b"0"), 0),
        *(({"routed_dp_rank": odd}, None) for odd in (-1, 2**32, "3", 1.0)),
    ],
    ("vllm", "rank header is a number of 32 bits or nothing", "dp_rank"): RANKS,
    ("sglang", "prompt is counted", "prompt_tokens samples"): [
        (b'{"input_ids" : [ 1 ,\n2 ] }', 2, 1),
        ({"input_ids": [7]}, 1, 1),
        ({"input_ids": []}, 0, 1),
        ({"input_ids": [[1, 2], [3]]}, 3, 2),
        ({"input_ids": [[1]], "sampling_params": {"n": 4}}, 1, 4),
        ({"input_ids": [[1], [2]], "sampling_params": [{"n": 2}, {"n": 2}]}, 2, 4),
        ({"input_ids": [1], "sampling_params": {"n": 0}}, 1, 1),
        ({"input_ids": [1], "sampling_params": {"n": 4, "beam_width": 4}}, 1, 1),
        ({"text": "hi"}, None, 1),
        ({"text": ["a", "b", "c"]}, None, 3),
        ({"text": []}, None, 0),
        ({"text": ["a", "b"], "input_ids": [[1], [2], [3]]}, 3, 2),
        ({"input_embeds": [[0.1, 0.2], [1, 2]]}, None, 1),
        ({"input_embeds": [[[0.1], [2]], [[1]]]}, None, 2),
        ({}, None, 1),
        (b'{"input_ids":[1],"input_ids":[1,2]}', 2, 1),
    ],
    # Of a batch the largest, if each prompt has one; a type that only the engine can judge is no limit.
    ("sglang", "max_tokens is the limit of the request", "max_tokens"): [
        (IDS | {"sampling_params": {"max_new_tokens": 5}}, 5),
        (IDS | {"sampling_params": {"max_new_tokens": None}}, None),
        (IDS | {"sampling_params": {"max_new_tokens": "5"}}, None),
        (IDS | {"sampling_params": None}, None),
        (BATCH | {"sampling_params": [{"max_new_tokens": 5}, {"max_new_tokens": 9}]}, 9),
        (BATCH | {"sampling_params": [{"max_new_tokens": 5}, {}]}, None),
    ],
    # Of a batch that of the prompt that is longest with its reply; 0, 0 if the ids are not the whole prompt.
    ("sglang", "length is that of a prompt and its reply", "longest"): [
        (IDS, (3, 4)),
        *((IDS | {"sampling_params": {"max_new_tokens": odd}}, (3, 4)) for odd in (None, 0, 1, "9")),
        (IDS | {"sampling_params": {"max_new_tokens": 5}}, (3, 8)),
        (IDS | {"sampling_params": [{"max_new_tokens": 5}]}, (3, 8)),
        (b'{"input_ids":[%b1],"sampling_params":{"max_new_tokens":2}}' % (b"1, " * 999), (1000, 1002)),
        ({"input_ids": [[1], [1, 2, 3], [1, 2]]}, (3, 4)),
        (b'{"input_ids":[ [1 ,2] ,\n[3]\t]}', (2, 3)),
        (BATCH | {"sampling_params": {"max_new_tokens": 5}}, (2, 7)),
        (BATCH | {"sampling_params": [{"max_new_tokens": 5}, {"max_new_tokens": 9}]}, (1, 10)),
        (BATCH | {"sampling_params": [{"max_new_tokens": 5}, {}, {"max_new_tokens": 99}]}, (2, 7)),
        (BATCH | {"sampling_params": [{}] * 3}, (2, 3)),
        (IDS | {"text": None, "image_data": None, "input_embeds": None}, (3, 4)),
        *(
            (IDS | {name: "x"}, (0, 0))
            for name in ("image_data", "video_data", "audio_data", "input_embeds", "session_params")
        ),
        ({"input_ids": [[1], [2], [3, 4]], "text": ["a", "b"]}, (0, 0)),
        ({"text": "hi"}, (0, 0)),
        ({"input_embeds": [[0.1, 0.2]]}, (0, 0)),
    ],
    ("sglang", "stream is read as the engine reads it", "stream"): [
        ({}, False),
        ({"stream": True}, True),
        (b'{"stream":"x","stream":true}', True),
        (b'{"\\u0073tream":true}', True),
    ],
    ("sglang", "value of another type than usual is missing", "priority lora cache_salt model"): [
        (IDS, 0, None, None, None),
        (IDS | {"priority": 7, "lora_path": "a", "cache_salt": "t", "model": "tiny"}, 7, "a", "t", "a"),
        (IDS | {"priority": None, "lora_path": ["a"], "cache_salt": "", "model": ""}, 0, None, None, None),
        (IDS | {"priority": True, "model": 5}, 0, None, None, None),
    ],
    ("sglang", "token ids are those of the first prompt", "token_ids"): [
        (IDS, [1, 2, 3]),
        ({"input_ids": [[4, 5], [6]]}, [4, 5]),
        ({"input_ids": [1, "a"]}, []),
        ({"input_ids": [["a"], [6]]}, []),
        ({"input_ids": "hello"}, []),
        ({"text": "hi"}, None),
    ],
    ("sglang", "ids are what the client named", "ids"): [
        (IDS | JOB, named(b"other"), ("job-1",)),
        (IDS | {"rid": ""}, named(b"other"), ("",)),
        (IDS | {"rid": None}, named(b"other"), ("other",)),
        (IDS, named(b" other "), ("other",)),
        (IDS, named("é".encode()), ("é",)),
        (IDS, named(b"\xff"), ("ÿ",)),
        (IDS, named(b" "), ()),
        (BATCH, named(b"other"), ()),
        (BATCH | JOB, ("job-1",)),
        (BATCH | {"rid": ["job-x", "job-y"]}, ("job-x", "job-y")),
        (IDS | {"rid": ["job-1"], "sampling_params": {"n": 2}}, ("job-1",)),
        (b'{"rid":"a","rid":"job-2"}', ("job-2",)),
        (b'{"rid":5,"rid":"job-2"}', ("job-2",)),
    ],
    # In a session an id stays what later turns will name.
    ("sglang", "id that could begin one of the engine's own is not usable", "ids_usable"): [
        (IDS | JOB, True),
        *((IDS | {"rid": odd}, False) for odd in ("1", "beef", "HEALTH_CHECK_1\n2")),
        (IDS | {"rid": "1", "session_params": {"id": "s"}}, True),
        (IDS | {"rid": "1", "session_params": None}, False),
    ],
    ("vllm", "prompt is counted without being judged", "prompt_tokens"): [
        (b'{"token_ids":[ 1 ,\n2 , 3 ]}', 3),
        ({"token_ids": []}, 0),
        ({"token_ids": ["1", "2"]}, 2),
        ({"token_ids": None}, None),
        ({"token_ids": "1,2"}, None),
        # JSON that only Python reads.
        (b'\xef\xbb\xbf{"token_ids":[1,2],"x":NaN}', 2),
        ('{"token_ids":[1,2]}'.encode("utf-16"), 2),
        (b'{"token_ids":[1,2],"x":"\\ud800"}', 2),
    ],
    ("vllm", "length is that of the prompt and its reply", "longest"): [
        ({"token_ids": [1, 2]}, (2, 3)),
        ({"token_ids": [1, 2], "sampling_params": {"max_tokens": 7}}, (2, 9)),
        *(({"token_ids": [1, 2], "sampling_params": {"max_tokens": odd}}, (2, 3)) for odd in (None, 0, "x")),
        ({"token_ids": [1, 2], "features": None}, (2, 3)),
        ({"token_ids": [1, 2], "features": {}}, (0, 0)),
        ({"token_ids": "1,2"}, (0, 0)),
    ],
    # And not at all where it would refuse them.
    ("vllm", "token ids are built as the engine converts them", "token_ids"): [
        ({"token_ids": []}, []),
        (b'{"token_ids":[1, 2]}', [1, 2]),
        ({"token_ids": ["1", True, 2.0]}, [1, 1, 2]),
        ({"token_ids": [1, 2.5]}, []),
        ({"token_ids": [1, "x"]}, []),
        ({"token_ids": "x"}, None),
    ],
    # Here the lowest comes first, there the largest; what is out of range stays the most or the least.
    ("vllm", "priority is turned round", "priority"): [
        *(({"priority": value}, urgent) for value, urgent in ((5, -5), ("-5", 5), (None, 0))),
        *(({"priority": value}, -(2**31)) for value in (2**31, 2**63 - 1)),
        *(({"priority": value}, 2**31 - 1) for value in (-(2**31), -99999999999999999999)),
    ],
    ("vllm", "name of a tenant or a model is text", "cache_salt model"): [
        ({"cache_salt": "a", "model": "m"}, "a", "m"),
        ({"cache_salt": "\u00e9", "model": '"NaN'}, "\u00e9", '"NaN'),
        *(({"cache_salt": odd, "model": odd}, None, None) for odd in ODD[:4]),
    ],
    ("sglang", "id is in the body", "id_member"): [({}, "rid")],
    ("vllm", "id is in the body, a model may be an adapter", "id_member lora"): [
        ({"model": "m"}, "request_id", "m"),
        ({}, "request_id", None),
    ],
    ("vllm", "images are read only if there are features", "images"): [
        ({"features": None}, None),
        ({}, None),
    ],
    ("vllm", "numbers and flags are converted as the engine converts them", "stream max_tokens samples"): [
        ({"stream": True, "sampling_params": {"max_tokens": "5", "n": "2"}}, True, 5, 2),
        ({"stream": "YES", "sampling_params": {"max_tokens": None, "n": None}}, True, None, 1),
        ({"stream": "maybe", "sampling_params": {"max_tokens": 1.5, "n": "x"}}, False, None, 1),
        ({"stream": 1, "sampling_params": {"n": 0}}, True, None, 1),
        ({"sampling_params": "x"}, False, None, 1),
        (b'{"stream":"x","sampling_params":7,"stream":true,"sampling_params":{"n":2}}', True, None, 2),
    ],
    # Read like the engine does; an id of another type is the engine's to refuse.
    ("vllm", "id is the first header or else the string in the body", "ids ids_usable"): [
        ({"request_id": "body"}, named(b"head"), ("head",), True),
        ({"request_id": "body"}, named(b"head"), named(b"second"), ("head",), True),
        ({"request_id": "body"}, named(b""), ("",), False),
        ({"request_id": "body"}, named(b"caf\xe9"), ("caf\u00e9",), False),
        *(({"request_id": odd}, (), True) for odd in ODD[1:]),
        (b'{"request_id":7,"request_id":"b"}', ("b",), True),
        (b'{"request_id":"NaN-Infinity","x":NaN}', ("NaN-Infinity",), True),
        *(({"request_id": good}, (good,), True) for good in ("job-1", "a b", "~!@#$%^&*()", "x" * LONGEST)),
        *(({"request_id": bad}, (bad,), False) for bad in (*"\x7f\u00e9\x00", " a", "a ", "a\nX: 1", "a\tb")),
        ({"request_id": "x" * (LONGEST + 1)}, ("x" * (LONGEST + 1),), False),
    ],
}


@pytest.mark.parametrize(
    ("engine", "members", "row"),
    [
        pytest.param(engine, members, row, id=f"{engine}: {promise}")
        for (engine, promise, members), rows in TABLE.items()
        for row in rows
    ],
)
def test_request_is_projected_as_the_engine_reads_it(engine: str, members: str, row: tuple[Any, ...]) -> None:
    names = members.split()
    body, *headers = row[: -len(names)]
    format = DIALECTS[engine].format
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    projection = format.project(format.parse(raw, headers))
    assert tuple(known(projection, name) for name in names) == row[-len(names) :]


def project(body: dict[str, Any], *headers: tuple[bytes, bytes]) -> Projection:
    projection: Projection = VLLM.project(VLLM.parse(json.dumps(body).encode(), headers))
    return projection


def test_token_ids_are_built_when_they_are_asked_for() -> None:
    """A long prompt costs nothing to project."""
    body = b'{"token_ids":[%b],"sampling_params":{}}' % b",".join([b"123456"] * 200_000)
    asked = VLLM.parse(body, ())
    tracemalloc.start()
    try:
        found = VLLM.project(asked)
        found.hints()
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert (build := found.hints().token_ids) is not None and len(build()) == 200_000


@given(
    st.dictionaries(
        st.sampled_from(["token_ids", "sampling_params", "request_id", "model", "stream", "other"]),
        ANY_JSON | st.fixed_dictionaries({"n": ANY_JSON, "max_tokens": ANY_JSON}),
    )
)
def test_every_object_is_accepted_whatever_its_types(body: dict[str, Any]) -> None:
    found = project(body)
    assert found.samples >= 1
    ids = body.get("token_ids")
    if isinstance(ids, list) and all(type(item) is int for item in ids):
        assert found.prompt_tokens == len(ids)


@pytest.mark.parametrize("engine", sorted(DIALECTS))
def test_body_that_is_nested_too_deeply_is_refused(engine: str) -> None:
    with pytest.raises(InvalidRequest):
        DIALECTS[engine].format.parse(b'{"x":' + b"[" * 100_000, ())


@given(st.binary(max_size=40))
def test_any_header_value_names_an_id_or_none(value: bytes) -> None:
    """A usable name is one that the engine reads back unchanged from a header."""
    found = project({}, named(value))
    assert found.ids == (value.decode("latin-1"),)
    if found.ids_usable:
        assert value and value == value.strip() and value.isascii() and value.decode().isprintable()
