"""Unary replies are buffered up to a limit, then relayed and scanned, with the same bytes and facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Ids, Reader, ReplyFacts
from gateway.formats.passthrough import BUFFER_LIMIT
from gateway.formats.sglang.tally import Tally
from gateway.formats.sglang.unary import UnaryScanner
from gateway.testing.drive import drive
from tests.formats.dialects import DIALECTS
from tests.formats.sglang.support import document
from tests.formats.sglang.support import reading as reading_sglang
from tests.formats.support import HEX, PRIVATE, compact, pieces

SAME = Ids(("job-1",), ("job-1",))
#: Text that looks like the members searched for.
LURE = '"completion_tokens":7,"finish_reason":"fake","usage":{"prompt_tokens":99},"id":"' + HEX + '"'
Counted = tuple[int, list[str], int | None, int | None, bool, int | None]


def of_sglang(pad: int = 0) -> bytes:
    """A batch of two."""
    first, second = (
        document(place + 2, finish, rid=f"{HEX}_{place}", text=LURE)
        for place, finish in enumerate(("stop", "length"))
    )
    return compact([{"pad": "x" * pad, **first}, second])


def of_vllm(pad: int = 0, *, usage_last: bool = False) -> bytes:
    """Two samples of one prompt."""
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}
    choices = [
        {"index": 0, "finish_reason": "stop", "stop_reason": None, "token_ids": [1, 2]},
        {"index": 1, "finish_reason": "length", "stop_reason": None, "token_ids": [3, 4, 5]},
    ]
    rest = {"pad": "x" * pad, "text": LURE, "choices": choices}
    named = {"request_id": f"generate-tokens-{HEX}"}
    return compact(named | (rest | {"usage": usage} if usage_last else {"usage": usage} | rest))


def reading(engine: str, ids: Ids = SAME) -> Reader:
    if engine == "sglang":
        return reading_sglang({"input_ids": [[1], [2]], "rid": "job-1"}, ids=ids)
    return DIALECTS[engine].reading(stream=False, ids=ids)


def counted(facts: ReplyFacts) -> Counted:
    return (
        facts.tokens,
        facts.finish_reasons,
        facts.prompt_tokens,
        facts.cached_tokens,
        facts.terminal,
        facts.error_status,
    )


REPLIES = pytest.mark.parametrize(
    ("engine", "make", "facts"),
    [
        ("sglang", of_sglang, (5, ["stop", "length"], 6, 4, True, None)),
        ("vllm", of_vllm, (5, ["stop", "length"], 3, 2, True, None)),
        ("vllm", lambda pad: of_vllm(pad, usage_last=True), (5, ["stop", "length"], 3, 2, True, None)),
    ],
)


@REPLIES
def test_short_reply_is_buffered_until_it_is_complete(
    engine: str, make: Callable[[int], bytes], facts: Counted
) -> None:
    """Nothing leaves before the last byte, so a broken reply can still be a clear error."""
    body = make(0)
    for padded in (body, make(BUFFER_LIMIT - len(body))):
        reader = reading(engine)
        assert {reader.feed(part) for part in pieces(padded, 1)} == {b""}
        assert reader.finish() == padded
        assert counted(reader.facts) == facts
        assert (reader.streaming, reader.identity) == (False, True)
    assert reading(engine).feed(padded + b" ") == padded + b" "


@REPLIES
@pytest.mark.parametrize("ids", [SAME, PRIVATE])
@pytest.mark.parametrize("size", [1, 3, 7, 50, 65_536])
def test_long_reply_is_passed_on_with_its_facts(
    engine: str, make: Callable[[int], bytes], facts: Counted, ids: Ids, size: int
) -> None:
    """A member or an id cut in two, even inside its number, is read once and whole."""
    body = b" " + make(BUFFER_LIMIT) + b"\n"
    begun = BUFFER_LIMIT + 10
    reader = reading(engine, ids)
    assert reader.feed(body[:BUFFER_LIMIT]) == b""
    assert len(reader.feed(body[BUFFER_LIMIT:begun])) > BUFFER_LIMIT - 100
    reader = reading(engine, ids)
    out = drive(reader, [body[:begun], *(body[at : at + size] for at in range(begun, len(body), size))])
    assert (out.out, out.failure) == (body if ids is SAME else with_public_ids(body), None)
    assert counted(reader.facts) == facts
    assert reader.identity is (ids is SAME)


def with_public_ids(body: bytes) -> bytes:
    lure, named = compact(LURE), b"@"
    return body.replace(lure, named).replace(HEX.encode(), b"job-1").replace(named, lure)


@pytest.mark.parametrize(
    ("engine", "body"),
    [
        *(
            (engine, odd)
            for engine in DIALECTS
            for odd in (b"", b"{", b"7", b'{"x":"\xff"}', b"{}{}", b"[" * 50_000)
        ),
        *(
            ("sglang", odd)
            for odd in (b"<html>", b'[{"x":"\xff"}]', compact({"pad": "x" * BUFFER_LIMIT})[:-1])
        ),
        ("sglang", compact({"pad": "x" * BUFFER_LIMIT, "list": []})[:-1]),
        *(("vllm", odd) for odd in (b" ", of_vllm()[:-1], of_vllm() + b"x", b"[1]", b"null")),
    ],
)
def test_reply_that_is_no_document_is_malformed(engine: str, body: bytes) -> None:
    assert drive(reading(engine), [body]).failure is UpstreamMalformed


@pytest.mark.parametrize(
    ("engine", "found"),
    [
        *(
            ("sglang", odd)
            for odd in ({}, [1], [{"meta_info": 7}, None], {"meta_info": {"completion_tokens": "1"}})
        ),
        ("vllm", {"choices": None}),
        ("vllm", {"choices": [7, {"finish_reason": 1, "token_ids": "x"}]}),
        ("vllm", {"usage": {"prompt_tokens": 1.5}}),
    ],
)
def test_reply_of_a_surprising_shape_is_relayed(engine: str, found: Any) -> None:
    outcome = drive(reading(engine), [b"\n" + compact(found)])
    assert (outcome.out, outcome.facts.terminal) == (b"\n" + compact(found), True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"index":1', b'"index":"1"'),
        (b'"completion_tokens":5', b'"completion_tokens":"5"'),
        (b"{", b'{"error":null,'),
    ],
)
def test_unusual_types_do_not_hide_other_members(old: bytes, new: bytes) -> None:
    facts = drive(reading("vllm"), [of_vllm().replace(old, new, 1)]).facts
    assert counted(facts) == (5, ["stop", "length"], 3, 2, True, None)


LURES = st.sampled_from(
    ["", '"completion_tokens":9,', '"finish_reason":{"type":"stop"', '\\"prompt_tokens":9}']
)
DOCUMENTS = st.builds(
    document,
    st.integers(0, 10**9),
    st.sampled_from(["stop", "length", "abort"]),
    text=LURES | st.text(),
)


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), st.integers(1, 2), st.integers(0, 10**6))
def test_scanned_facts_are_the_decoded_facts(
    documents: list[Any], samples_per_prompt: int, seed: int
) -> None:
    body = compact(documents)
    decoded = Tally(len(documents), samples_per_prompt)
    decoded.reply(body)
    scanned = ReplyFacts(terminal=True)
    scanner = UnaryScanner(scanned, samples_per_prompt)
    for piece in pieces(body, seed):
        scanner.feed(piece)
    assert scanner.complete()
    assert scanned == decoded.facts
