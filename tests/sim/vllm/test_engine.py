"""What the simulated vLLM does with generate calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.sim import SimConfig, SimServer
from tests.sim.calls import JSON, begin, body, control, generate, ids
from tests.sim.client import ask

SLOW = SimConfig(token_delay=0.005)
PATH = "/inference/v1/generate"


async def post(sim: SimServer, content: bytes | None = None, **request: Any) -> Any:
    return await ask(sim.port, PATH, content or json.dumps(request).encode(), headers=JSON)


def choice(event: Any) -> Any:
    return event["choices"][0]


async def test_stream_carries_the_unary_tokens_as_deltas() -> None:
    """One token a chunk, the reason with the last, then [DONE]."""
    async with SimServer("vllm") as sim, SimServer("sglang") as other:
        complete = ids(await generate(sim, 6))
        assert complete == ids(await generate(other, 6)), "the model does not depend on the dialect"
        answer = await generate(sim, 6, stream=True)
    assert [choice(event)["token_ids"] for event in answer.events] == [[token] for token in complete]
    assert [choice(event)["finish_reason"] for event in answer.events] == [None] * 5 + ["length"]
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert [chunk.count(b"data: ") for chunk in answer.chunks] == [1] * 7


async def test_scale_out_off_is_a_403() -> None:
    async with SimServer("vllm", SimConfig(enable_scale_out=False)) as sim:
        refused = await post(sim, b"nonsense")
        abort = await control(sim, "/inference/v1/abort_requests", request_ids=["x"])
    assert refused.status == abort.status == 403
    assert refused.json["error"]["type"] == "PermissionDeniedError"


async def test_header_names_the_request_before_the_body_does() -> None:
    """Always with the engine's prefix; null is refused, an empty id is one."""
    async with SimServer("vllm") as sim:
        both = await generate(sim, request_id="body", headers=[("X-Request-Id", "head")])
        own = await generate(sim, request_id="body")
        empty = await generate(sim, request_id="")
        null = await generate(sim, request_id=None)
    found = [reply.json["request_id"] for reply in (both, own, empty)]
    assert found == ["generate-tokens-head", "generate-tokens-body", "generate-tokens-"]
    assert (null.status, null.json["error"]["param"]) == (400, "body.request_id")


CODEC = "'utf-8' codec can't encode character '\\ud800' in position %d: surrogates not allowed"


@pytest.mark.parametrize(
    ("member", "status", "type_", "message"),
    [
        ('"request_id":"a\\ud800"', 500, "InternalServerError", ""),
        ('"request_id":"\ud800"', 500, "InternalServerError", ""),
        ('"model":"a\\ud800"', 400, "BadRequestError", CODEC % 33),
        ('"kv_transfer_params":{"a":"\\ud800"}', 400, "BadRequestError", CODEC % 0),
        ('"cache_salt":"a\\ud800"', 400, "Bad Request", "string_unicode"),
        ('"x":"\\ud800"', 200, "", ""),
    ],
)
async def test_unpaired_surrogate_is_answered_as_the_engine_does(
    member: str, status: int, type_: str, message: str
) -> None:
    """As observed: it cannot be sent to the engine core, or not be written in the error about it."""
    text = '{"token_ids":[5],"sampling_params":{"max_tokens":1},%s%s}'
    async with SimServer("vllm") as sim:
        reply = await post(sim, (text % (member, "")).encode("utf-8", "surrogatepass"))
        late = await post(sim, (text % (member, ',"stream":true')).encode("utf-8", "surrogatepass"))
        assert (await generate(sim, 1)).status == 200
    assert reply.status == status
    if status == 500:
        assert late.status == 200 and late.events == [reply.json]
    if status != 200:
        error = reply.json["error"]
        assert (error["type"], error["code"]) == (type_, status)
        assert message in error["message"] and bool(error["message"]) == bool(message)


async def test_abort_needs_the_prefixed_id_and_ends_all_that_share_it() -> None:
    """200 in any case; stream ends with an empty chunk, unary with what it has."""
    async with SimServer("vllm", SLOW) as sim:
        stream = await begin(sim, 3000, request_id="r", stream=True)
        unary = await begin(sim, 3000, request_id="r")
        await sim.until(lambda: sim.running == 2)
        await sim.streaming()
        bare = await control(sim, "/inference/v1/abort_requests", request_ids=["r"])
        assert sim.running == 2
        full = await control(sim, "/inference/v1/abort_requests", request_ids=["generate-tokens-r"])
        events = (await stream.answer()).events
        reply = (await unary.answer()).json
        stream.leave()
        unary.leave()
        assert [call.hit for call in sim.aborts] == [0, 2]
    assert (bare.status, bare.body, full.status) == (200, b"", 200)
    assert choice(events[-1])["finish_reason"] == choice(reply)["finish_reason"] == "abort"
    assert choice(events[-1])["token_ids"] == []
    made = sum(len(choice(event)["token_ids"]) for event in events)
    assert choice(events[-1])["weight_versions"] == [{"version": "default", "start": 0, "end": made}]
    assert 0 < len(choice(reply)["token_ids"]) < 3000


async def test_abort_does_not_end_requests_whose_id_begins_with_the_aborted_one() -> None:
    async with SimServer("vllm", SLOW) as sim:
        clients = [await begin(sim, 3000, request_id=id) for id in ("job-1", "job-10")]
        await sim.until(lambda: sim.running == 2)
        await control(sim, "/inference/v1/abort_requests", request_ids=["generate-tokens-job-1"])
        assert sim.running == 1
        for client in clients:
            client.leave()


@pytest.mark.virtual_time
@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_frees_the_engine_at_once(stream: bool) -> None:
    async with SimServer("vllm", SLOW) as sim:
        client = await begin(sim, 3000, stream=stream)
        await sim.until(lambda: sim.running == 1)
        client.leave()
        gone = await sim.client_gone()
        await sim.idle()
    assert gone.aborted == gone.client_gone


async def test_samples_share_one_id_and_interleave() -> None:
    """Each index ends for itself; greedy samples are refused."""
    async with SimServer("vllm") as sim:
        sampling = {"n": 2, "temperature": 1.0}
        events = (await generate(sim, 3, stream=True, sampling=sampling, request_id="n")).events
        unary = (await generate(sim, 3, sampling=sampling)).json
        greedy = await generate(sim, 3, sampling={"n": 2})
    assert {event["request_id"] for event in events} == {"generate-tokens-n"}
    assert sorted(choice(event)["index"] for event in events) == [0, 0, 0, 1, 1, 1]
    assert [choice(event)["index"] for event in events[:2]] == [0, 1]
    assert [item["index"] for item in unary["choices"]] == [0, 1]
    assert unary["usage"]["completion_tokens"] == 6
    assert greedy.status == 400


async def test_long_prompt_is_late_only_with_explicit_max_tokens() -> None:
    """Then a stream has its 200 already."""
    async with SimServer("vllm", SimConfig(max_model_len=10)) as sim:
        early = await post(sim, token_ids=[5] * 10, sampling_params={}, stream=True)
        late = await post(sim, token_ids=[5] * 10, sampling_params={"max_tokens": 1}, stream=True)
        unary = await post(sim, token_ids=[5] * 10, sampling_params={"max_tokens": 1})
    assert (early.status, late.status, unary.status) == (400, 200, 400)
    assert late.body.startswith(b'data: {"error": {"message": "The decoder prompt (length 10)')
    assert late.body.endswith(b"data: [DONE]\n\n")
    assert late.events[0]["error"] == unary.json["error"]


async def test_full_engine_is_a_503_in_both_forms() -> None:
    config = SimConfig(token_delay=0.005, max_running=1, max_queued=2)
    async with SimServer("vllm", config) as sim:
        clients = [await begin(sim, 3000) for _ in range(2)]
        await sim.until(lambda: sim.running + sim.waiting == 2)
        unary, streamed = await generate(sim), await generate(sim, stream=True)
        for client in clients:
            client.leave()
    assert unary.status == streamed.status == 503
    assert unary.json["error"]["type"] == "Service Unavailable"


async def test_lower_priority_value_runs_first() -> None:
    config = SimConfig(token_delay=0.002, max_running=1, priority_scheduling=True)
    async with SimServer("vllm", config) as sim:
        running = await begin(sim, 30)
        await sim.until(lambda: sim.running == 1)
        names = {"later": 5, "second": 1, "first": -1, "third": 1}
        clients = []
        for waiting, (name, priority) in enumerate(names.items(), 1):
            clients.append(await begin(sim, 2, priority=priority, request_id=name))
            await sim.until(lambda waiting=waiting: sim.waiting == waiting)  # type: ignore[misc]
        order = [(await sim.finished(count)).ids[0] for count in range(2, 6)]
        for client in (running, *clients):
            client.leave()
    assert order == [f"generate-tokens-{name}" for name in ("first", "second", "third", "later")]


async def test_pause_refuses_new_requests_and_resume_takes_them() -> None:
    """503 when unary, an event in a 200 when streamed; what ran is aborted."""
    async with SimServer("vllm", SLOW) as sim:
        client = await begin(sim, 3000)
        await sim.until(lambda: sim.running == 1)
        paused = await control(sim, "/pause")
        reply = (await client.answer()).json
        client.leave()
        unary, streamed = await generate(sim), await generate(sim, stream=True)
        result = await control(sim, "/is_paused", "GET")
        await control(sim, "/resume")
        assert (await generate(sim)).status == 200
    assert paused.json == {"status": "paused"} and result.json == {"is_paused": True}
    assert choice(reply)["finish_reason"] == "abort"
    assert unary.status == 503 and unary.json["error"]["type"] == "ServiceUnavailableError"
    assert streamed.status == 200 and streamed.events[0]["error"]["code"] == 503


async def test_pause_that_keeps_holds_everything() -> None:
    async with SimServer("vllm", SimConfig(token_delay=0.002)) as sim:
        complete = ids(await generate(sim, 30))
        running = await begin(sim, 30)
        await sim.until(lambda: sim.running == 1)
        await control(sim, "/pause?mode=keep")
        waiting = await begin(sim, 2)
        await sim.until(lambda: sim.waiting == 1)
        await control(sim, "/resume")
        assert ids(await running.answer()) == complete
        assert (await waiting.answer()).status == 200
        running.leave()
        waiting.leave()


async def test_usage_comes_as_asked() -> None:
    """At the end, with every chunk, or with cached tokens where the server says so."""
    config = SimConfig(enable_prompt_tokens_details=True, page_size=1)
    async with SimServer("vllm", config) as sim:
        plain = (await generate(sim, 2, stream=True)).events
        last = (await generate(sim, 2, stream=True, stream_options={"include_usage": True})).events
        options = {"include_usage": True, "continuous_usage_stats": True}
        each = (await generate(sim, 2, stream=True, stream_options=options)).events
        unary = (await generate(sim, 2)).json
    assert [event["usage"] for event in plain] == [None, None]
    assert last[-1]["choices"] == []
    assert last[-1]["usage"] == {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
    assert [event["usage"]["completion_tokens"] for event in each] == [1, 2, 2]
    assert unary["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_logprobs_have_the_sampled_token_first() -> None:
    """0 gives it alone, 2 one more; a stream carries the same."""
    async with SimServer("vllm") as sim:
        none = (await generate(sim, 2, sampling={"logprobs": 0})).json
        two = (await generate(sim, 2, sampling={"logprobs": 2})).json
        events = (await generate(sim, 2, stream=True, sampling={"logprobs": 2})).events
    for reply, size in ((none, 1), (two, 2)):
        content = choice(reply)["logprobs"]["content"]
        assert [entry["token_id"] for entry in content] == choice(reply)["token_ids"]
        assert [len(entry["top_logprobs"]) for entry in content] == [size] * 2
    assert [choice(event)["logprobs"]["content"][0] for event in events] == choice(two)["logprobs"]["content"]


async def test_text_mode_adds_text_up_to_the_stop_string() -> None:
    async with SimServer("vllm") as sim:
        text = choice((await generate(sim, 5, output_mode="text")).json)["text"]
        stop = text[len(text) // 2 :][:4]
        reply = choice((await generate(sim, 5, output_mode="text", sampling={"stop": [stop]})).json)
        events = (await generate(sim, 5, output_mode="text", stream=True)).events
    assert reply["text"] == text[: text.index(stop)]
    assert (reply["finish_reason"], reply["stop_reason"]) == ("stop", stop)
    assert "".join(choice(event)["text"] for event in events) == text


async def test_stop_ids_and_end_of_sequence() -> None:
    """A stop id is told; the end of sequence is not, except where no tokenizer knows it."""
    async with SimServer("vllm", SimConfig(eos_rate=1.0)) as sim:
        ended = choice((await generate(sim, 5)).json)
        ignored = choice((await generate(sim, 5, sampling={"ignore_eos": True})).json)
        stop = {"ignore_eos": True, "stop_token_ids": [9], "allowed_token_ids": [9]}
        stopped = choice((await generate(sim, 5, sampling=stop)).json)
    async with SimServer("vllm", SimConfig(eos_rate=1.0, skip_tokenizer=True)) as sim:
        bare = choice((await generate(sim, 5)).json)
    assert (ended["token_ids"], ended["finish_reason"], ended["stop_reason"]) == ([2], "stop", None)
    assert len(ignored["token_ids"]) == 5
    assert (stopped["token_ids"], stopped["stop_reason"]) == ([9], 9)
    assert bare["stop_reason"] == 2


async def test_cached_prefix_comes_in_full_blocks() -> None:
    """16 tokens each; a salt has a cache of its own."""
    config = SimConfig(enable_prompt_tokens_details=True)
    async with SimServer("vllm", config) as sim:
        request: dict[str, Any] = {"token_ids": list(range(100, 150)), "sampling_params": {"max_tokens": 1}}
        requests = [request, request, {**request, "cache_salt": "a"}]
        replies = [(await post(sim, **each)).json for each in requests]
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
    assert cached == [0, 48, 0]


async def test_id_outside_of_the_vocabulary_kills_a_server_without_tokenizer() -> None:
    """A 500 first, then the process ends."""
    async with SimServer("vllm", SimConfig(skip_tokenizer=True)) as sim:
        answer = await post(sim, token_ids=[32000], sampling_params={"max_tokens": 1})
        assert await sim.exited() == 1
    assert answer.status == 500 and answer.json["error"]["type"] == "InternalServerError"


async def test_sigterm_aborts_and_refuses_connections() -> None:
    async with SimServer("vllm", SLOW) as sim:
        client = await begin(sim, 3000)
        await sim.until(lambda: sim.running == 1)
        sim.terminate()
        assert choice((await client.answer()).json)["finish_reason"] == "abort"
        assert await sim.exited() == 0
        client.leave()
        with pytest.raises(ConnectionRefusedError):
            await generate(sim)


async def test_sigterm_with_a_timeout_lets_requests_finish() -> None:
    """It leaves as soon as the last one is over."""
    async with SimServer("vllm", SimConfig(token_delay=0.002, shutdown_timeout=20)) as sim:
        client = await begin(sim, 30)
        await sim.until(lambda: sim.running == 1)
        sim.terminate()
        assert choice((await client.answer()).json)["finish_reason"] == "length"
        assert await sim.exited() == 0
        client.leave()


@pytest.mark.virtual_time
async def test_sigterm_may_leave_requests_hanging() -> None:
    """As real ones were seen to do: no byte, no close."""
    async with SimServer("vllm", SimConfig(token_delay=0.002, hang_on_sigterm=True)) as sim:
        client = await begin(sim, 3000, stream=True)
        await sim.streaming()
        sim.terminate()
        await client.head()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.answer_rest()
        with pytest.raises(ConnectionRefusedError):
            await ask(sim.port, PATH, body("vllm"))
        client.leave()
