"""A large body that is read in steps gives the same request as one that is read at once."""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.contract import Ids
from gateway.formats.json import windows as json_windows
from gateway.formats.json.splice import member_spans, remove_member
from gateway.formats.json.steps import entries_of, members, members_of
from gateway.formats.json.windows import Span, pieces
from gateway.formats.relayed import RelayedFormat
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.sglang import large_body as sglang_big
from gateway.formats.vllm import FORMAT as VLLM
from gateway.formats.vllm import large_body as vllm_big
from gateway.proxy.query_of_death import digest
from gateway.testing.damage import ANY_JSON, bodies, damaged
from tests.formats.support import HEX, View
from tests.formats.support import run_steps as run

RELAYED = RelayedFormat("/v1/embeddings", "a|b")
FORMATS: dict[str, Any] = {"sglang": SGLANG, "vllm": VLLM}
CHECKED: dict[str, Any] = {
    "sglang": SGLANG.configured({"vocab_size": "1000"}),
    "vllm": VLLM.configured({"vocab_size": "1000"}),
}
SAMPLE = {
    "sglang": [
        b'{"input_ids":[[1, 22,333], [4]],"rid":["a","b\\u00e9"],"sampling_params":{"n":2,"max_new_tokens":5}'
        b',"x":{"deep":[{"er":"a, \\"b\\\\"}, []]}, "stream":true,"return_logprob":[true,false]}',
        b'{ "text" : ["one","two, \\ud83d\\ude00"], "sampling_params" : [{"n":1,"stop":["a"]},{"n":1}],\n'
        b'"lora_path":["a",null],"model":"m","rid":"x"}',
        b'{"input_ids":[1,2,3,40000],"sampling_params":{"max_new_tokens":null},"logprob_start_len":-1}',
        b'{"text":["a", "", "b"],"logprob_start_len":[-1, -2,0],"return_logprob":[true,false, true],'
        b'"sampling_params":[{"max_new_tokens":5},{"max_new_tokens":7}, {"max_new_tokens":6}]}',
    ],
    "vllm": [
        b'{"token_ids":[1, 22,333],"sampling_params":{"n":2,"max_tokens":"5","stop":["a, \\"b"]},'
        b'"request_id":"a\\u00e9","x":{"deep":[{"er":"a, \\"b\\\\"}, []]}, "stream": 1,"priority":-3}',
        b'{ "token_ids" : [1,"2",3.0,40000], "sampling_params" : {},\n "model":"m", "features":null}',
    ],
    "relayed": [
        b'{"model":"m","stream":true,"rid":"r\\u00e9","messages":[{"content":"a, \\"b\\""},[]],"n":2}',
        b'{ "request_id" : "q" , "prompt":[ "a","b"],"stream": false,"rid":7,"use_beam_search":true}',
        b'{"prompt":[1,2,3],"n":1,"model":{"deep":["er"]},"rid":"a","rid":"b"}',
    ],
}
WINDOWS = st.sampled_from((13, 16, 33, 64, 1024))


@contextmanager
def small_windows(size: int) -> Iterator[None]:
    with (
        mock.patch.object(json_windows, "WINDOW", size),
        mock.patch.object(sglang_big, "STEPWISE_SIZE", 8),
        mock.patch.object(vllm_big, "STEPWISE_SIZE", 8),
        mock.patch.object(vllm_big, "_PIECE", size),
    ):
        yield


class Nothing(msgspec.Struct):
    pass


def assert_same_fault(text: bytes, window: int) -> None:
    """Assert that ``members`` raises what msgspec raises about the text read at once."""
    faults: list[str | None] = []
    for read in (lambda: run(members(text, ())), lambda: msgspec.json.decode(text, type=Nothing)):
        with small_windows(window):
            try:
                read()
                faults.append(None)
            except msgspec.DecodeError as error:
                faults.append(str(error))
    assert faults[0] == faults[1]


objects = st.dictionaries(st.sampled_from(["a", "b\\", "é", "rid", ""]), ANY_JSON, max_size=5)
texts = st.builds(
    lambda value, ascii_, indent: json.dumps(value, ensure_ascii=ascii_, indent=indent).encode(),
    objects,
    st.booleans(),
    st.sampled_from([None, 1, 20]),
)


@settings(max_examples=400)
@given(texts.flatmap(damaged), WINDOWS)
def test_fault_is_the_one_msgspec_finds_and_in_the_same_place(text: bytes, window: int) -> None:
    if text.lstrip(b" \n").startswith(b"{"):
        assert_same_fault(text, window)


@settings(max_examples=300)
@given(texts, WINDOWS)
def test_members_and_entries_are_where_a_full_parse_finds_them(text: bytes, window: int) -> None:
    complete = {
        name: bytes(raw) for name, raw in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()
    }
    with small_windows(window):
        found = run(members(text, complete.keys(), repeated="rid"))
        assert {name: text[slice(*span)] for name, span in found.values.items()} == complete
        assert found.repeated == member_spans(text, "rid")
        for span in found.values.values():
            _hold_inner(text, span)
    if len(found.cuts) == 1:
        [(start, end)] = found.cuts
        assert text[:start] + text[end:] == remove_member(text, "rid")


def _hold_inner(text: bytes, span: Span) -> None:
    value = text[slice(*span)]
    if value.startswith(b"["):
        listed = [bytes(raw) for raw in msgspec.json.decode(value, type=list[msgspec.Raw])]
        entries: list[Span] = []
        run(entries_of(text, span, entries))
        assert [text[slice(*each)] for each in entries] == listed
        assert b"".join(pieces(text, span)) == value
    if value.startswith(b"{"):
        raws = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        inner = run(members_of(text, span, raws.keys()))
        assert {name: text[slice(*each)] for name, each in inner.items()} == dict(
            zip(raws, map(bytes, raws.values()), strict=True)
        )


def test_member_that_repeats_without_end_is_refused() -> None:
    text = b"{%b}" % b",".join([b'"rid":1'] * 3000)
    with small_windows(1024), pytest.raises(msgspec.ValidationError, match="more than 1024 times"):
        run(members(text, ("rid",), repeated="rid"))


@pytest.mark.parametrize("filler", [b" ", b"1", b"[", b'{"":', b'"\\u00e9', b'"\\\\', b'"a'])
def test_long_runs_of_one_thing_are_judged_as_in_one_go(filler: bytes) -> None:
    """Windows without a comma, a quote or an end."""
    for text in (b'{"a":' + filler * 300, b'{"a":1' + filler * 300 + b"}", b"{" + filler * 90 + b'"a":1}'):
        assert_same_fault(text, 64)


Verdict = tuple[Any, ...]
_LATER = {"fields", "rid_spans", "id_cuts", "token_ids", "features", "spans", "cuts"}


def verdict(format: Any, read: Any) -> Verdict:
    """Return what is known of a request and what is sent for it, or why it is refused."""
    try:
        request = read()
    except InvalidRequest as error:
        unreadable = "JSON: " in error.message
        return "refused", error.message.partition("JSON: ")[0] if unreadable else error.message, error.rule
    names = getattr(request, "__struct_fields__", ()) or request.__slots__
    known = {name: getattr(request, name) for name in names if name not in _LATER}
    projection = format.project(request)
    sent = format.upstream(request, View(), Ids((HEX,), ("made",)))
    body = sent.body + b"".join(map(bytes, sent.rest))
    return (
        known,
        projection._replace(hints=None, id_cuts=None),
        body,
        sent.headers,
        projection.hints().priority,
    )


@pytest.mark.parametrize("kind", SAMPLE)
@settings(max_examples=250)
@given(st.data())
def test_verdict_on_a_body_is_the_same_in_steps(kind: str, data: st.DataObject) -> None:
    """The engine gets the same under another id."""
    body = data.draw(bodies(data.draw(st.sampled_from(SAMPLE[kind]))))
    formats = [RELAYED] if kind == "relayed" else [FORMATS[kind], CHECKED[kind]]
    format = data.draw(st.sampled_from(formats))
    headers = data.draw(st.sampled_from([[], [(b"content-type", b"x/y")]])) if kind == "relayed" else []
    complete = verdict(format, lambda: format.parse(body, headers))
    # No window of the product's is shorter than a number; one that were would show a part of it only.
    windows = [window for window in (64, 128, 1024) if not re.search(rb"[0-9]{%d}" % window, body)]
    with small_windows(data.draw(st.sampled_from(windows))):
        in_steps = verdict(format, lambda: run(format.parse_in_steps(body, headers)))
    assert in_steps == complete


#: What stands in a body, in ``_ODD_PLACES``, and what becomes of the body: of SGLang, of vLLM.
_ODD = {
    "no UTF-8": (b'"\xff"', "passed", "refused"),
    "a surrogate in UTF-8": (b'"\xed\xa0\x80"', "passed", "passed"),
    "a NUL": (b'"\x00"', "refused", "refused"),
    "an escaped NUL": (b'"\\u0000"', "passed", "passed"),
    "a lone surrogate": (b'"\\ud800"', "refused", "passed"),
    "surrogates the wrong way round": (b'"\\udc00\\ud800"', "refused", "passed"),
    "an unknown escape": (b'"\\q"', "refused", "refused"),
}
_ODD_VALUES = {
    "a deep list": (b"[" * 900 + b"]" * 900, "passed", "passed"),
    "a deeper list": (b"[" * 1100 + b"]" * 1100, "refused", "refused"),
    "a long number": (b"9" * 5000, "passed", "passed"),
    "a huge number": (b"1e999999", "passed", "passed"),
    "a leading zero": (b"01", "refused", "refused"),
    "not a number": (b"NaN", "refused", "passed"),
    "two values": (b"1 2", "refused", "refused"),
    "no value": (b"", "refused", "refused"),
}
_PLACES = {
    "name": b'{"input_ids":[1],"token_ids":[1],"sampling_params":{},%s:1}',
    "inner name": b'{"input_ids":[1],"token_ids":[1],"sampling_params":{},"x":[{%s:1}]}',
    "name of a parameter": b'{"input_ids":[1],"token_ids":[1],"sampling_params":{"n":2,%s:1}}',
    # A type that is read the slow way.
    "name beside an odd value": b'{"input_ids":[1],"token_ids":[1],"sampling_params":[{"n":2}],%s:1}',
    "value": b'{"input_ids":[1],"token_ids":[1],"sampling_params":{},"x":%s}',
    "value of a parameter": b'{"input_ids":[1],"token_ids":[1],"sampling_params":{"x":%s}}',
}
_PLAIN = b'{"input_ids":[1],"token_ids":[1],"sampling_params":{}}'
_COMPLETE = {
    "twice": (
        b'{"input_ids":[1],"input_ids":[2,3],"token_ids":[1],"token_ids":[2],"sampling_params":{}}',
        "passed",
        "passed",
    ),
    "a NUL at its end": (_PLAIN + b"\x00", "refused", "refused"),
    "a byte order mark": (b"\xef\xbb\xbf" + _PLAIN, "refused", "passed"),
    "UTF-16": (_PLAIN.decode().encode("utf-16"), "refused", "passed"),
    "a comma at its end": (_PLAIN[:-1] + b",}", "refused", "refused"),
    "a name that is a number": (b"{1:2," + _PLAIN[1:], "refused", "refused"),
    **{
        text.decode(): (text, "refused", "refused")
        for text in (b"", b" " * 99, b"[]", b'"x"', b"null", b"7", b"tru", b"-")
    },
}


def _odd_bodies() -> Iterator[tuple[str, bytes, str, str]]:
    for place, frame in _PLACES.items():
        for what, (text, *expected) in (_ODD | (_ODD_VALUES if place.startswith("value") else {})).items():
            yield f"{what}, {place}", frame.replace(b"%s", text), expected[0], expected[1]
    for what, (text, *expected) in _COMPLETE.items():
        yield what, text, expected[0], expected[1]


@pytest.mark.parametrize("window", [64, 1024])
@pytest.mark.parametrize("kind", FORMATS)
def test_unusual_json_is_judged_alike_at_once_and_in_steps(kind: str, window: int) -> None:
    """Bytes that are no UTF-8 are the engine's to refuse, in members that the gateway does not read."""
    for what, body, of_sglang, of_vllm in _odd_bodies():
        format = FORMATS[kind]
        complete = verdict(format, lambda: format.parse(body, []))  # noqa: B023 - called at once
        with small_windows(window):
            in_steps = verdict(format, lambda: run(format.parse_in_steps(body, [])))  # noqa: B023
        assert in_steps == complete, what
        found = "refused" if complete[0] == "refused" else "passed"
        assert found == (of_sglang if kind == "sglang" else of_vllm), what


@pytest.mark.parametrize(
    ("format", "member"), [(SGLANG, b'"rid"'), (VLLM, b'"request_id"'), (RELAYED, b'"rid"')]
)
def test_bodies_that_differ_in_their_id_alone_are_one_to_the_shield(format: Any, member: bytes) -> None:
    rest = b'"input_ids":[1],"token_ids":[1],"sampling_params":{}'
    named = [b"{%b:%b,%b}" % (member, value, rest) for value in (b'"a"', b'"bc"')]
    digests = set()
    for body in (*named, b'{%b,%b:"d"}' % (rest, member), named[0][:-1] + b',%b:"d"}' % member):
        cuts = format.project(run(format.parse_in_steps(body, []))).id_cuts
        assert cuts is not None
        digests.add(digest(body, cuts))
    assert len(digests) == 1


MEBIBYTE = 1024 * 1024
_OBJECT = b'{"token":17,"logprob":[-0.25,null,{"text":"hello world"}],"on":true}'
_HEAD = b'{"input_ids":[1,2],"token_ids":[1,2],"sampling_params":{},"x":'
SIZE = 6 * MEBIBYTE
#: Lists that are full of short entries.
ENTRIES = {
    "texts": (b"text", b'"a"'),
    "starts": (b"logprob_start_len", b"-2"),
    "parameters": (b"sampling_params", b'{"n":2,"max_new_tokens":2}'),
}


@pytest.mark.parametrize(("count", "length"), [(16_385, 8), (2_000, 600)])
def test_list_of_rids_without_end_is_refused(count: int, length: int) -> None:
    """By their number in any body, by their bytes in a large one, before they are decoded."""
    rids = b",".join([b'"%0*d"' % (length, number) for number in range(count)])
    body = b'{"text":[%b],"rid":[%b],"sampling_params":{}}' % (b",".join([b'"a"'] * count), rids)
    with pytest.raises(InvalidRequest, match="16384 entries and 1 MiB") as failure:
        run(SGLANG.parse_in_steps(body, []))
    assert failure.value.param == "rid"
    if length == 8:
        with pytest.raises(InvalidRequest, match="16384 entries"):
            SGLANG.parse(body, [])


def big(case: str) -> bytes:
    if case == "ids":
        ids = b",".join(b"%d" % (place * 7919 % 900) for place in range(SIZE // 4))
        return b'{"input_ids":[%b],"token_ids":[%b],"sampling_params":{}}' % (ids, ids)
    if case == "string":
        return b'%b"%b"}' % (_HEAD, b"a prompt \\n " * (SIZE // 11))
    if case in ENTRIES:
        name, entry = ENTRIES[case]
        entries = b",".join([entry] * (SIZE // (len(entry) + 1)))
        ids = b"" if name == b"text" else b'"input_ids":[1],'
        return b'{%b"token_ids":[1],"sampling_params":{},"%b":[%b]}' % (ids, name, entries)
    objects = b",".join([_OBJECT] * (SIZE // len(_OBJECT)))
    return b"%b[%b%b]}" % (_HEAD, objects, b",oops" if case == "no JSON at its end" else b"")


def step_times(kind: str, body: bytes) -> list[float]:
    """The CPU time of each step, in seconds, the longest first."""
    steps = CHECKED[kind].parse_in_steps(body, [])
    taken: list[float] = []
    with pytest.raises((StopIteration, InvalidRequest)):
        while True:
            start = time.thread_time()
            try:
                next(steps)
            finally:
                taken.append(time.thread_time() - start)
    return sorted(taken, reverse=True)


@pytest.mark.parametrize("case", ["ids", "string", "objects", "no JSON at its end", *ENTRIES])
@pytest.mark.parametrize("kind", FORMATS)
def test_step_of_a_large_body_is_short(kind: str, case: str) -> None:
    """A few milliseconds of CPU, however large the body: the second longest step of the best of five runs."""
    body = big(case)
    gc.freeze()  # as the product does: the collector does not visit the objects of the tests
    try:
        for _ in range(5):
            taken = step_times(kind, body)
            assert len(taken) >= SIZE // (128 * 1024)
            if taken[1] < 0.02:
                return
    finally:
        gc.unfreeze()
    raise AssertionError(f"{taken[1] * 1000:.1f} ms")


@pytest.mark.parametrize("case", ENTRIES)
def test_large_body_of_short_entries_is_not_kept_as_objects(case: str) -> None:
    """Objects would take a hundred times the memory of the body."""
    steps = SGLANG.parse_in_steps(big(case), [])
    before = most = sys.getallocatedblocks()
    for _ in steps:
        most = max(most, sys.getallocatedblocks())
    assert most - before < 50_000
