"""The cost of a long join: a stream of one token and five top logprobs in each event."""

from __future__ import annotations

import gc
import json
import tracemalloc

from gateway.formats.contract import ReplyHead
from gateway.formats.vllm import FORMAT
from tests.formats.support import DONE, EVENTS, PRIVATE, View, compact
from tests.formats.vllm.support import chunk, request
from tests.support.calls import calls_of

TOKENS = 10_000


def stream() -> list[bytes]:
    entry = {"token_id": 150_000, "logprob": -12.345678710937, "rank": 117}
    logprobs = {"content": [entry | {"top_logprobs": [entry] * 5}]}
    keys = {"routed_experts": None, "sampling_mask": None, "weight_versions": None, "logprobs": logprobs}
    event, last = (json.loads(chunk([150_000], finish)[6:]) for finish in (None, "length"))
    for one in (event, last):
        one["choices"][0] |= keys
    return [b"data: %b\n\n" % compact(one) for one in [event] * (TOKENS - 1) + [last]] + [DONE]


def join(events: list[bytes]) -> bytes:
    reader = FORMAT.join(request(b'{"token_ids":[1]}'), View(), PRIVATE, ReplyHead(200, EVENTS))
    for event in events:
        reader.feed(event)
    return reader.finish()


def test_long_join_calls_few_functions_for_each_event() -> None:
    """About 30; decoding each member of an event would take several times as many."""
    events = stream()
    assert calls_of(lambda: join(events)) <= 40 * TOKENS


def test_long_join_holds_no_more_than_three_replies() -> None:
    """The peak, the current event and the finished reply included."""
    events = stream()
    gc.collect()
    tracemalloc.start()
    try:
        reply = join(events)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(json.loads(reply)["choices"][0]["token_ids"]) == TOKENS
    assert peak <= 3 * len(reply)
