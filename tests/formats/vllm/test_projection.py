"""Parsing of requests: which fields are read, and that no bytes raise other errors."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.contract import Projection
from gateway.formats.routing_hints import Hints
from gateway.formats.vllm import FORMAT
from tests.formats.vllm.support import fuzzed


def project(body: bytes | dict[str, Any], *headers: tuple[bytes, bytes]) -> Projection:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return FORMAT.project(FORMAT.parse(raw, headers))


def test_projection_of_a_full_body() -> None:
    found = project(
        {
            "token_ids": [1, 2, 3],
            "sampling_params": {"max_tokens": 7, "n": 2},
            "model": "m",
            "request_id": "r",
            "stream": True,
            "priority": -2,
            "cache_salt": "tenant",
        },
        (b"x-data-parallel-rank", b" 3 "),
    )
    hints = found.hints()
    assert hints.token_ids is not None
    assert list(hints.token_ids()) == [1, 2, 3]
    assert replace(hints, token_ids=None) == Hints(priority=2, lora="m", cache_salt="tenant", dp_rank=3)
    assert found._replace(hints=Hints) == Projection(
        stream=True,
        ids=("r",),
        model="m",
        prompt_tokens=3,
        max_tokens=7,
        samples=2,
        id_member="request_id",
    )


def test_projection_of_an_empty_object() -> None:
    found = project(b"{}")
    assert found.hints() == Hints()
    assert found._replace(hints=Hints) == Projection(stream=False, id_member="request_id")


@pytest.mark.parametrize(
    ("ids", "count"),
    [(b"[]", 0), (b"[ 1 ,\n2 , 3 ]", 3), (b'["1","2"]', 2), (b"null", None), (b'"1,2"', None)],
)
def test_prompt_tokens_are_counted_without_judging_them(ids: bytes, count: int | None) -> None:
    assert project(b'{"token_ids":%b,"sampling_params":{}}' % ids).prompt_tokens == count


@pytest.mark.parametrize(
    ("ids", "built"),
    [
        (b"[]", []),
        (b"[1, 2]", [1, 2]),
        (b'["1", true, 2.0]', [1, 1, 2]),
        (b"[1, 2.5]", []),
        (b'[1, "x"]', []),
    ],
)
def test_token_ids_are_built_as_the_engine_converts_them(ids: bytes, built: list[int]) -> None:
    """And not at all where it would refuse them."""
    build = project(b'{"token_ids":%b}' % ids).hints().token_ids
    assert build is not None
    assert list(build()) == built


def test_token_ids_are_built_when_they_are_asked_for() -> None:
    """A long prompt costs nothing to project, and a prompt that is no list has none."""
    body = b'{"token_ids":[%b],"sampling_params":{}}' % b",".join([b"123456"] * 200_000)
    asked = FORMAT.parse(body, ())
    tracemalloc.start()
    try:
        found = FORMAT.project(asked)
        found.hints()
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert (build := found.hints().token_ids) is not None and len(build()) == 200_000
    assert project(b'{"token_ids":"x"}').hints().token_ids is None


@pytest.mark.parametrize(
    ("value", "urgent"),
    [
        (b"5", -5),
        (b'"-5"', 5),
        (b"null", 0),
        (b"2147483648", -2147483648),
        (b"9223372036854775807", -2147483648),
        (b"-2147483648", 2147483647),
        (b"-99999999999999999999", 2147483647),
    ],
)
def test_priority_is_turned_round(value: bytes, urgent: int) -> None:
    """Here the lowest comes first, there the largest; what is out of range stays the most or the least."""
    assert project(b'{"priority":%b}' % value).hints().priority == urgent


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        (b" 12\t", 12),
        (b"4294967295", 4294967295),
        (b"4294967296", None),
        (b"-1", None),
        (b"", None),
        (b"\xb2", None),
        (b"9" * 5000, None),
    ],
)
def test_rank_comes_from_its_header(value: bytes, rank: int | None) -> None:
    assert project(b"{}", (b"x-data-parallel-rank", value)).hints().dp_rank == rank


@pytest.mark.parametrize(
    ("value", "salt"), [(b'"a"', "a"), (b'""', None), (b"null", None), (b"7", None), (b'"\\u00e9"', "\u00e9")]
)
def test_cache_salt_is_the_tenants(value: bytes, salt: str | None) -> None:
    assert project(b'{"cache_salt":%b}' % value).hints().cache_salt == salt


def test_images_are_read_only_if_there_are_features() -> None:
    assert project(b'{"token_ids":[1],"features":null}').hints().images is None
    for features in (b"7", b"{}", b'{"mm_hashes":{}}', b'{"x":NaN}'):
        find = project(b'{"token_ids":[1],"features":%b}' % features).hints().images
        assert find is not None and find() is None


@pytest.mark.parametrize(
    ("value", "stream"),
    [(b"true", True), (b'"YES"', True), (b'"maybe"', False), (b"1", True)],
)
def test_stream_is_read_as_the_engine_reads_it(value: bytes, stream: bool) -> None:
    """The engine converts words and numbers to a flag, so a stream is expected exactly when it sends one."""
    assert project(b'{"token_ids":[1],"stream":%b}' % value).stream is stream


@pytest.mark.parametrize(
    ("params", "max_tokens", "samples"),
    [
        (b'{"max_tokens":"5","n":"2"}', 5, 2),
        (b'{"max_tokens":null,"n":null}', None, 1),
        (b'{"max_tokens":1.5,"n":"x"}', None, 1),
        (b'{"n":0}', None, 1),
        (b'"x"', None, 1),
    ],
)
def test_sampling_is_read_as_the_engine_reads_it(params: bytes, max_tokens: int | None, samples: int) -> None:
    """Numbers the engine would convert are converted; what it refuses is left for it to refuse."""
    found = project(b'{"token_ids":[1],"sampling_params":%b}' % params)
    assert (found.max_tokens, found.samples) == (max_tokens, samples)


def test_duplicate_keys_read_the_last_one() -> None:
    """The engine's parser lets the last of several equal keys win, whatever the types of the others."""
    found = project(
        b'{"token_ids":[1],"stream":"x","request_id":7,"token_ids":[1,2],"stream":true,"request_id":"b"}'
    )
    assert (found.prompt_tokens, found.stream, found.ids) == (2, True, ("b",))


HEAD = (b"x-request-id", b"head")


@pytest.mark.parametrize(
    ("value", "headers", "ids", "usable"),
    [
        (b'"body"', [HEAD], ("head",), True),
        (b'"body"', [HEAD, (b"x-request-id", b"second")], ("head",), True),
        (b'"body"', [(b"x-request-id", b"")], ("",), False),
        (b'"body"', [(b"x-request-id", b"caf\xe9")], ("caf\u00e9",), False),
        *((value, [], (), True) for value in (b"null", b"7", b"[]", b'{"a":1}', b"true")),
    ],
)
def test_id_is_the_first_header_or_else_the_string_in_the_body(
    value: bytes, headers: list[tuple[bytes, bytes]], ids: tuple[str, ...], usable: bool
) -> None:
    """Read like the engine does; an id of another type is the engine's to refuse."""
    found = project(b'{"request_id":%b}' % value, *headers)
    assert (found.ids, found.ids_usable) == (ids, usable)


@pytest.mark.parametrize("usable", [True, False])
def test_name_that_no_header_can_hold_is_not_usable(usable: bool) -> None:
    """A name goes to the engine in a header, so only what survives there unchanged may be used."""
    good = ["job-1", "a b", "~!@#$%^&*()", "x" * 1024]
    bad = ["x" * 1025, " a", "a ", "a\n", "a\nX-Evil: 1", "a\tb", "\x7f", "\u00e9", "\u65e5\u672c", "\x00"]
    for name in good if usable else bad:
        found = project({"request_id": name})
        assert (found.ids, found.ids_usable) == ((name,), usable)


@pytest.mark.parametrize("model", [b"null", b'""', b"5", b"[]"])
def test_model_that_names_nothing_is_none(model: bytes) -> None:
    assert project(b'{"model":%b}' % model).model is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"token_ids":[1,2],"sampling_params":{"temperature":NaN}}',
        b'{"token_ids":[1,2],"x":"\\ud800"}',
        b'{"token_ids":[1,2],"x":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"token_ids":[1,2]}',
        '{"token_ids":[1,2]}'.encode("utf-16"),
        b' \t\r\n{"token_ids":[1,2]} \n',
        b'{"token_ids":[1,2],"x":%b1%b}' % (b"[" * 400, b"]" * 400),
    ],
)
def test_json_that_only_python_reads_is_read(body: bytes) -> None:
    """The engine's parser takes more than the standard allows, so none of it is refused."""
    json.loads(body)
    request = FORMAT.parse(body, ())
    assert request.prompt_tokens == 2
    assert request.body is body


def test_text_that_looks_like_a_number_keeps_its_place() -> None:
    found = project(b'{"request_id":"NaN-Infinity","x":NaN,"model":"\\"NaN"}')
    assert (found.ids, found.model) == (("NaN-Infinity",), '"NaN')


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a":1,}',
        b"{} x",
        b'{"a":NaN',
        b'{"a":"\xff"}',
        b"[1,2,3]",
        b"null",
        b'{"a":%b}' % (b"[" * 100_000),
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_object_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        FORMAT.parse(body, ())
    assert caught.value.message.startswith("The body ")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@fuzzed
@given(
    st.dictionaries(
        st.sampled_from(["token_ids", "sampling_params", "request_id", "model", "stream", "other"]),
        JSON_VALUES | st.fixed_dictionaries({"n": JSON_VALUES, "max_tokens": JSON_VALUES}),
    )
)
def test_every_object_is_accepted_whatever_its_types(body: dict[str, Any]) -> None:
    found = project(body)
    assert found.samples >= 1
    ids = body.get("token_ids")
    if isinstance(ids, list) and all(type(item) is int for item in ids):
        assert found.prompt_tokens == len(ids)


@fuzzed
@given(st.binary(max_size=40))
def test_any_header_value_names_an_id_or_none(value: bytes) -> None:
    """A usable name is one that the engine reads back unchanged from a header."""
    found = project(b"{}", (b"x-request-id", value))
    assert found.ids == (value.decode("latin-1"),)
    if found.ids_usable:
        assert value and value == value.strip() and value.isascii() and value.decode().isprintable()
