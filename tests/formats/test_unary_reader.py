"""Unary replies are buffered up to a limit, then relayed; an engine's are scanned for the same facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Ending, Ids, Reader, ReplyFacts
from gateway.formats.passthrough import BUFFER_LIMIT, PassthroughReader
from gateway.formats.sglang.tally import Tally
from gateway.formats.sglang.unary import UnaryScanner
from gateway.testing.drive import drive
from tests.formats.dialects import DIALECTS
from tests.formats.sglang.support import document
from tests.formats.sglang.support import reading as reading_sglang
from tests.formats.support import HEX, LOOSE_JSON, PRIVATE, compact, pieces

SAME = Ids(("job-1",), ("job-1",))
#: Text that looks like the members searched for.
LURE = '"completion_tokens":7,"finish_reason":"fake","usage":{"prompt_tokens":99},"id":"' + HEX + '"'


def of_sglang(pad: int = 0) -> bytes:
    first, second = (
        document(place + 2, finish, rid=f"{HEX}_{place}", text=LURE)
        for place, finish in enumerate(("stop", "length"))
    )
    return compact([{"pad": "x" * pad, **first}, second])


def of_vllm(pad: int = 0, *, usage_last: bool = False) -> bytes:
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


def facts_of(prompt_tokens: int, cached_tokens: int) -> ReplyFacts:
    """Return the facts of five tokens in two samples."""
    return ReplyFacts(5, prompt_tokens, cached_tokens, ["stop", "length"], terminal=True, ending=Ending.OTHER)


REPLIES = pytest.mark.parametrize(
    ("engine", "make", "facts"),
    [
        ("sglang", of_sglang, facts_of(6, 4)),
        ("vllm", of_vllm, facts_of(3, 2)),
        ("vllm", lambda pad: of_vllm(pad, usage_last=True), facts_of(3, 2)),
    ],
)


@REPLIES
def test_short_reply_is_buffered_until_it_is_complete(
    engine: str, make: Callable[[int], bytes], facts: ReplyFacts
) -> None:
    """Nothing leaves before the last byte, so a broken reply can still be a clear error."""
    body = make(0)
    for padded in (body, make(BUFFER_LIMIT - len(body))):
        reader = reading(engine)
        assert {reader.feed(part) for part in pieces(padded, 1)} == {b""}
        assert reader.finish() == padded
        assert reader.facts == facts
        assert (reader.streaming, reader.identity) == (False, True)
    assert reading(engine).feed(padded + b" ") == padded + b" "


@REPLIES
@pytest.mark.parametrize("ids", [SAME, PRIVATE])
@pytest.mark.parametrize("size", [1, 3, 7, 50, 65_536])
def test_long_reply_is_passed_on_with_its_facts(
    engine: str, make: Callable[[int], bytes], facts: ReplyFacts, ids: Ids, size: int
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
    assert reader.facts == facts
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


@pytest.mark.parametrize(("engine", "make"), [("sglang", of_sglang), ("vllm", of_vllm)])
@pytest.mark.parametrize("value", LOOSE_JSON)
@pytest.mark.parametrize("pad", [0, BUFFER_LIMIT])
def test_reply_that_only_pythons_json_reads_is_relayed_and_counted(
    engine: str, make: Any, value: bytes, pad: int
) -> None:
    reply = make(pad).replace(b"{", b'{"x":[%b,"y"],' % value, 1)
    outcome = drive(reading(engine), [reply])
    assert (outcome.out, outcome.failure) == (reply, None)
    assert outcome.facts == drive(reading(engine), [make(pad)]).facts


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
    assert outcome.facts.foreign is not bool(outcome.facts.finish_reasons)


@pytest.mark.parametrize("pad", [0, BUFFER_LIMIT])
@pytest.mark.parametrize("engine", DIALECTS)
def test_reply_of_another_dialect_is_foreign_and_an_error_is_none(engine: str, pad: int) -> None:
    foreign = {"foo": 1, "x": "y" * pad}
    facts = drive(reading(engine), [compact(foreign)]).facts
    assert (facts.foreign, facts.terminal, facts.error_status) == (True, True, None)
    if not pad:
        assert not drive(reading(engine), [compact({"error": {"code": 503}, **foreign})]).facts.foreign
    own = of_sglang if engine == "sglang" else of_vllm
    assert not drive(reading(engine), [own(pad)]).facts.foreign


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
    assert facts == facts_of(3, 2)


LURES = st.sampled_from(
    ["", '"completion_tokens":9,', '"finish_reason":{"type":"stop"', '\\"prompt_tokens":9}']
)
DOCUMENTS = st.builds(
    document, st.integers(0, 10**9), st.sampled_from(["stop", "length", "abort"]), text=LURES | st.text()
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


def test_long_reply_that_is_not_inspected_is_passed_on_as_it_comes() -> None:
    reader = PassthroughReader(400)
    assert reader.feed(b"x" * BUFFER_LIMIT) == b""
    assert reader.feed(b"y") == b"x" * BUFFER_LIMIT + b"y"
    assert (reader.feed(b"z"), reader.finish()) == (b"z", b"")


@pytest.mark.parametrize(
    ("status", "ending"),
    [(200, Ending.OPAQUE), (304, Ending.OPAQUE), (400, Ending.ERROR_STATUS), (599, Ending.ERROR_STATUS)],
)
def test_ending_follows_from_the_status_and_is_the_only_fact(status: int, ending: Ending) -> None:
    reader = PassthroughReader(status)
    reader.feed(b'{"usage":{"completion_tokens":5}}')
    reader.finish()
    assert reader.facts == ReplyFacts(ending=ending)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_paths_are_cut_wherever_the_bytes_are(size: int) -> None:
    body = b"x" * BUFFER_LIMIT + b" /opt/engine/core.py line " * 9
    reader = PassthroughReader(500, cut=True)
    cut = [body[:BUFFER_LIMIT], *(body[at : at + size] for at in range(BUFFER_LIMIT, len(body), size))]
    passed = b"".join(map(reader.feed, cut)) + reader.finish()
    assert passed == body.replace(b"/opt/engine/core.py", b"<path>")
    assert not reader.identity
