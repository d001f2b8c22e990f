"""What a request and an event cost, in calls of functions: a figure that no neighbour on the machine changes.

The budgets are what was counted when they were last set; a change that takes a tenth more needs a reason, one
that takes a tenth less a new budget. docs/performance.md tells what the calls are for.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import pytest

from gateway.upstream.read_buffer import USUAL_READ
from tests.support.generate import KINDS, LIMIT, PROMPT
from tests.support.socketless import STREAM_END, STREAM_HEAD, Client, Rig, counted, event, post, unary_reply

#: Share over a budget that fails.
SLACK = 1.10


def request_of(format: str, ids: int = 8, *, stream: bool = False) -> bytes:
    params, model = {LIMIT[format]: 1}, {} if format == "sglang" else {"model": "model"}
    body = {PROMPT[format]: list(range(1, ids + 1)), "sampling_params": params, "stream": stream, **model}
    return post(KINDS[format], json.dumps(body).encode())


def reply_of(format: str, tokens: int = 1, *, last: bool = True, text: str = "a", **more: object) -> bytes:
    """A unary reply, or an event."""
    document: dict[str, object]
    if format == "sglang":
        finish = {"type": "length", "length": tokens} if last else None
        meta = {"id": "a" * 32, "finish_reason": finish, "prompt_tokens": 8, "completion_tokens": tokens}
        document = {"text": text, "output_ids": [7], "meta_info": {**meta, "cached_tokens": 0}}
    else:
        choice = {"index": 0, "token_ids": [7], "logprobs": None, "finish_reason": "length" if last else None}
        document = {"request_id": "abc", "choices": [choice], **more}
    return json.dumps(document, separators=(",", ":")).encode()


Make = Callable[..., Rig]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    rigs: list[Rig] = []

    def make(format: str, **options: bool | int) -> Rig:
        rigs.append(Rig(format, **options))  # type: ignore[arg-type]  # both are passed on as they are
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def streamed(client: Client, request: bytes, running: bytes, last: bytes, events: int) -> None:
    reply = client.request(request)
    reply(STREAM_HEAD)
    for _ in range(events):
        reply(event(running))
    reply(event(last) + event(b"[DONE]") + STREAM_END)


async def unary(rig: Rig, request: bytes, reply: bytes) -> int:
    client = rig.client()
    calls = await counted(lambda: client.request(request)(reply))
    assert client.wire.written[-1].startswith(b"HTTP/1.1 200 OK\r\n")
    return calls


async def per_event(rig: Rig, request: bytes, running: bytes, last: bytes) -> float:
    client = rig.client()
    few = await counted(lambda: streamed(client, request, running, last, 10), warm=5)
    many = await counted(lambda: streamed(client, request, running, last, 30), warm=5)
    assert client.wire.written[-1].endswith(b"0\r\n\r\n")
    return (many - few) / 20


def within(calls: float, budget: float) -> bool:
    print(f"{calls:.1f} calls, budget {budget}")
    return calls <= budget * SLACK


USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


@pytest.mark.parametrize(
    ("format", "logged", "budget"), [("sglang", False, 346), ("sglang", True, 370), ("vllm", False, 316)]
)
async def test_unary_request_takes_its_calls(make: Make, format: str, logged: bool, budget: int) -> None:
    reply = unary_reply(reply_of(format, usage=USAGE))
    assert within(await unary(make(format, access_log=logged), request_of(format), reply), budget)


@pytest.mark.parametrize(("format", "budget"), [("sglang", 52), ("vllm", 57)])
async def test_event_takes_its_calls(make: Make, format: str, budget: int) -> None:
    running, last = reply_of(format, last=False), reply_of(format)
    assert within(await per_event(make(format), request_of(format, stream=True), running, last), budget)


def in_reads(reply: Callable[[bytes], None], data: bytes) -> None:
    for place in range(0, len(data), USUAL_READ):
        reply(data[place : place + USUAL_READ])


@pytest.mark.parametrize("format", ["sglang", "vllm"])
async def test_long_event_takes_few_calls_for_each_read_of_it(make: Make, format: str) -> None:
    client = make(format).client()
    request, last = request_of(format, stream=True), event(reply_of(format))

    def long(reads: int) -> Callable[[], None]:
        data = last.partition(b"\r\n")[2].partition(b"data: {")[2].removesuffix(b"\n\n\r\n")
        running = event(b'{"more":"%b",%b' % (b"x" * (reads * USUAL_READ), data))

        def stream() -> None:
            reply = client.request(request)
            reply(STREAM_HEAD)
            in_reads(reply, running)
            reply(event(b"[DONE]") + STREAM_END)

        return stream

    few, many = await counted(long(2), warm=3), await counted(long(12), warm=3)
    assert client.wire.written[-1].endswith(b"0\r\n\r\n")
    assert within((many - few) / 10, 35)


async def test_long_event_is_passed_on_unchanged_and_never_joined_with_its_chunk(make: Make) -> None:
    client, text = make("sglang").client(), "x" * (3 * USUAL_READ)
    long, last = event(reply_of("sglang", 1, last=False, text=text)), event(reply_of("sglang", 2, text=text))
    reply = client.request(request_of("sglang", stream=True))
    in_reads(reply, STREAM_HEAD + long)
    assert b"".join(client.wire.written).endswith(b"\r\n\r\n" + long)
    assert any(part.startswith(b"data: ") and part.endswith(b"\n\n") for part in client.wire.written)
    client.wire.written.clear()
    in_reads(reply, last + event(b"[DONE]") + STREAM_END)
    body = last.partition(b"\r\n")[2].removesuffix(b"\r\n") + b"data: [DONE]\n\n"
    assert b"".join(client.wire.written) == b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


async def test_stream_of_one_token(make: Make) -> None:
    client, request = make("sglang").client(), request_of("sglang", stream=True)
    last = reply_of("sglang", 1)
    reply = STREAM_HEAD + event(last) + event(b"[DONE]") + STREAM_END
    assert within(await counted(lambda: client.request(request)(reply)), 376)


async def test_long_prompt_takes_no_more_calls_than_a_short_one(make: Make) -> None:
    rig, reply = make("sglang"), unary_reply(reply_of("sglang", 1))
    short = await unary(rig, request_of("sglang", 8), reply)
    assert await unary(rig, request_of("sglang", 5_000), reply) <= short + 20


async def test_large_fleet_takes_no_more_calls_than_a_small_one(make: Make) -> None:
    """The policy looks at each worker, but in a few passes in C; nothing else does."""
    request, reply = request_of("sglang"), unary_reply(reply_of("sglang", 1))
    small = await unary(make("sglang", workers=2), request, reply)
    assert await unary(make("sglang", workers=64), request, reply) <= small + 10


async def test_open_exchanges_beside_it_cost_a_request_next_to_nothing(make: Make) -> None:
    """Ids in flight are kept in order: the only thing that grows with them, and by a copy of pointers."""
    request, reply = request_of("sglang"), unary_reply(reply_of("sglang", 1))
    alone = await unary(make("sglang"), request, reply)
    busy = make("sglang", kept=200)
    for _ in range(300):
        busy.client().request(request_of("sglang", stream=True), keep=False)
        await asyncio.sleep(0)
    assert await unary(busy, request, reply) <= alone + 10


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector. What was made before is put out of its sight: a look at that takes too long."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


async def test_ended_exchange_leaves_nothing_to_the_garbage_collector(make: Make) -> None:
    """Else each would keep its body in memory until the collector runs, which then takes its time."""
    rig = make("sglang", access_log=True)
    client = rig.client()

    def both() -> None:
        client.request(request_of("sglang"))(unary_reply(reply_of("sglang", 1)))
        running, last = reply_of("sglang", last=False), reply_of("sglang", 2)
        streamed(client, request_of("sglang", stream=True), running, last, 3)

    with uncollected():
        both()
        await asyncio.sleep(0)
        gc.collect()
        for _ in range(5):
            both()
        await asyncio.sleep(0)
        assert gc.collect() < 5


async def test_stream_that_arrived_in_one_read_is_sent_in_one_write(make: Make) -> None:
    client = make("sglang").client()
    end = event(reply_of("sglang", 1)) + event(b"[DONE]")
    client.request(request_of("sglang", stream=True))(STREAM_HEAD + end + STREAM_END)
    [written] = client.wire.written
    assert written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert written.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_exchange_whose_client_left_is_held_by_no_traceback(make: Make) -> None:
    """An error holds the frames it came through, these the exchange, and this the error."""
    rig = make("sglang", kept=3)
    with uncollected():
        client = rig.client()
        client.request(request_of("sglang"), keep=False)
        client.leave()
        await asyncio.sleep(0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [held for held in gc.garbage if isinstance(held, TracebackType)]
