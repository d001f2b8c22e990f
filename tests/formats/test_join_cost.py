"""The cost of a long join: a stream of one token with five top logprobs in each event."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from typing import Any

import msgspec
import pytest

from gateway.formats.contract import Reader, ReplyHead
from gateway.formats.worker_contract import WorkerInfo
from tests.formats.dialects import DIALECTS
from tests.formats.sglang.support import FORMAT, parsed, same
from tests.formats.support import DONE, EVENTS, HEX, View, compact
from tests.formats.vllm.support import chunk
from tests.support.calls import calls_of

TOKENS = 30_000
TOP = 5
READ = 64 * 1024

_EVENT = (
    b'data: {"text":" t%d","output_ids":[%d],"meta_info":{"id":"a","finish_reason":%b,"prompt_tokens":3,'
    b'"weight_version":"default","num_retractions":0,"input_token_logprobs":[],"output_token_logprobs":[%b],'
    b'"output_token_logprobs_length":%d,"input_top_logprobs":[],"output_top_logprobs":[%b],'
    b'"reasoning_tokens":0,"completion_tokens":%d,"cached_tokens":2,'
    b'"cached_tokens_details":{"device":2,"host":0},"dp_rank":null}}\n\n'
)


def triple(token: int) -> bytes:
    return b"[-%d.%016d,%d,null]" % (token % 9, token * 7919, token)


def sglang_events() -> Iterator[bytes]:
    for place in range(TOKENS):
        token = place * 7919 % 150_000
        finish = b'{"type":"length","length":%d}' % TOKENS if place == TOKENS - 1 else b"null"
        top = b"[%b]" % b",".join(triple(token + place) for place in range(TOP))
        yield _EVENT % (token, token, finish, triple(token), place + 1, top, place + 1)
    yield DONE


def vllm_events() -> Iterator[bytes]:
    entry = {"token_id": 150_000, "logprob": -12.345678710937, "rank": 117}
    keys: dict[str, Any] = dict.fromkeys(("routed_experts", "sampling_mask", "weight_versions"))
    keys["logprobs"] = {"content": [entry | {"top_logprobs": [entry] * TOP}]}
    event, last = (json.loads(chunk([150_000], finish)[6:]) for finish in (None, "length"))
    for one in (event, last):
        one["choices"][0] |= keys
    yield from [b"data: %b\n\n" % compact(event)] * (TOKENS - 1)
    yield b"data: %b\n\n" % compact(last)
    yield DONE


def joining(kind: str) -> Reader:
    """Return a join reader; ``declared``: the worker names the mode of its streams."""
    if kind == "vllm":
        return DIALECTS["vllm"].reading("join")
    mode = "incremental" if kind == "sglang, declared" else None
    worker = View(info=WorkerInfo("sglang", "sglang_generate", True, stream_mode=mode))
    return FORMAT.join(
        parsed({"input_ids": [1, 2, 3], "stream": True}), worker, same(HEX), ReplyHead(200, EVENTS)
    )


@cache
def events(kind: str) -> list[bytes]:
    return list(vllm_events() if kind == "vllm" else sglang_events())


def reads(kind: str) -> list[bytes]:
    complete = b"".join(events(kind))
    return [complete[start : start + READ] for start in range(0, len(complete), READ)]


def join(kind: str, pieces: list[bytes]) -> bytes:
    reader = joining(kind)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this process, so that others on the machine do not count."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


KINDS = pytest.mark.parametrize("kind", ["sglang", "vllm"])
PIECES = pytest.mark.parametrize("pieces", [reads, events], ids=["read by read", "event by event"])


@KINDS
@PIECES
def test_long_join_calls_few_functions_for_each_event(
    kind: str, pieces: Callable[[str], list[bytes]]
) -> None:
    """About 30; decoding each member of an event would take several times as many."""
    cut = pieces(kind)
    assert calls_of(lambda: join(kind, cut)) <= 40 * TOKENS


@PIECES
def test_long_join_costs_a_few_parses_of_its_reply(pieces: Callable[[str], list[bytes]]) -> None:
    """The best of nine runs, compared with the best decoding of the reply into objects.

    It is about one. A join whose cost grows with the square of the reply takes a hundred.
    """
    cut = pieces("sglang")
    reply = join("sglang", cut)
    parse = joined = inf
    for _ in range(9):
        parse = min(parse, seconds(lambda: msgspec.json.decode(reply)))
        joined = min(joined, seconds(lambda: join("sglang", cut)))
        if joined <= 3 * parse:
            return
    raise AssertionError(f"the join cost {joined / parse:.1f} parses")


@pytest.mark.parametrize("kind", ["sglang", "sglang, declared", "vllm"])
def test_long_join_holds_three_times_its_reply_at_most(kind: str) -> None:
    cut = reads(kind)
    gc.collect()
    tracemalloc.start()
    try:
        reply = join(kind, cut)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 3 * len(reply)
    document = msgspec.json.decode(reply)
    meta = document.get("meta_info", {})
    lists = (
        [document["output_ids"], meta["output_top_logprobs"]]
        if meta
        else [document["choices"][0]["token_ids"]]
    )
    assert {len(found) for found in lists} == {TOKENS}
