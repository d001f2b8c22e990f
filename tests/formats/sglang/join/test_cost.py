"""The cost of a long join: a stream of 30,000 tokens with five top logprobs, one token in each event."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from math import inf

import msgspec
import pytest

from gateway.formats.contract import Reader, ReplyHead
from gateway.formats.worker_contract import WorkerInfo
from tests.formats.sglang.support import FORMAT, parsed, same
from tests.formats.support import DONE, EVENTS, HEX, View
from tests.support.calls import calls_of

TOKENS = 30_000
TOP = 5
READ = 64 * 1024
MODES = ["incremental", None]

_EVENT = (
    b'data: {"text":" t%d","output_ids":[%d],"meta_info":{"id":"a","finish_reason":%b,"prompt_tokens":3,'
    b'"weight_version":"default","num_retractions":0,"input_token_logprobs":[],"output_token_logprobs":[%b],'
    b'"output_token_logprobs_length":%d,"input_top_logprobs":[],"output_top_logprobs":[%b],'
    b'"reasoning_tokens":0,"completion_tokens":%d,"cached_tokens":2,'
    b'"cached_tokens_details":{"device":2,"host":0},"dp_rank":null}}\n\n'
)


def triple(token: int) -> bytes:
    return b"[-%d.%016d,%d,null]" % (token % 9, token * 7919, token)


def top(token: int) -> bytes:
    return b"[%b]" % b",".join(triple(token + place) for place in range(TOP))


def events() -> Iterator[bytes]:
    for place in range(TOKENS):
        token = place * 7919 % 150_000
        finish = b'{"type":"length","length":%d}' % TOKENS if place == TOKENS - 1 else b"null"
        count = place + 1
        yield _EVENT % (token, token, finish, triple(token), count, top(token), count)


@cache
def stream() -> bytes:
    return b"".join(events()) + DONE


def reads() -> Iterator[bytes]:
    complete = memoryview(stream())
    return (bytes(complete[start : start + READ]) for start in range(0, len(complete), READ))


def joining(mode: str | None) -> Reader:
    worker = View(info=WorkerInfo("sglang", "sglang_generate", True, stream_mode=mode))
    request = parsed({"input_ids": [1, 2, 3], "stream": True})
    return FORMAT.join(request, worker, same(HEX), ReplyHead(200, EVENTS))


def join(mode: str | None, pieces: Iterator[bytes]) -> bytes:
    reader = joining(mode)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this process, so that others on the machine do not count."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


PIECES = pytest.mark.parametrize("pieces", [reads, events], ids=["read by read", "event by event"])


@PIECES
def test_long_join_calls_few_functions_for_each_event(pieces: Callable[[], Iterator[bytes]]) -> None:
    """About 30; decoding each member of an event would take several times as many."""
    cut = list(pieces())
    assert calls_of(lambda: join(None, iter(cut))) <= 40 * TOKENS


@PIECES
def test_long_join_costs_a_few_parses_of_its_reply(pieces: Callable[[], Iterator[bytes]]) -> None:
    """The best of nine runs, compared with the best decoding of the reply into objects.

    It is about one. A join whose cost grows with the square of the reply takes a hundred.
    """
    reply = join(None, reads())
    cut = list(pieces())
    parse = joined = inf
    for _ in range(9):
        parse = min(parse, seconds(lambda: msgspec.json.decode(reply)))
        joined = min(joined, seconds(lambda: join(None, iter(cut))))
        if joined <= 3 * parse:
            return
    raise AssertionError(f"the join cost {joined / parse:.1f} parses")


@pytest.mark.parametrize("mode", MODES)
def test_long_join_holds_three_times_its_reply_at_most(mode: str | None) -> None:
    stream()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        reply = join(mode, reads())
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak <= 3 * len(reply)
    document = msgspec.json.decode(reply)
    meta = document["meta_info"]
    assert len(document["output_ids"]) == len(meta["output_top_logprobs"]) == TOKENS
    assert meta["completion_tokens"] == len(meta["output_token_logprobs"]) == TOKENS
