"""The simulated SGLang's generate calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.sim import SimConfig, SimServer
from tests.sim.calls import JSON, PROMPT, begin, control, generate, ids
from tests.sim.client import ask

SLOW = SimConfig(token_delay=0.005)


async def post(sim: SimServer, **request: Any) -> Any:
    return await ask(sim.port, "/generate", json.dumps(request).encode(), headers=JSON)


@pytest.mark.parametrize("incremental", [False, True])
async def test_stream_carries_the_unary_tokens_and_text(incremental: bool) -> None:
    """Cumulative or in pieces, it adds up to the unary reply."""
    async with SimServer("sglang", SimConfig(incremental_streaming_output=incremental)) as sim:
        complete = (await generate(sim, 7)).json
        answer = await generate(sim, 7, stream=True)
    events = answer.events
    assert len(events) == 7 and answer.body.endswith(b"data: [DONE]\n\n")
    assert [chunk.count(b"data: ") for chunk in answer.chunks] == [1] * 8
    if incremental:
        assert [token for event in events for token in event["output_ids"]] == complete["output_ids"]
        assert "".join(event["text"] for event in events) == complete["text"]
    else:
        cumulative = [complete["output_ids"][:size] for size in range(1, 8)]
        assert [event["output_ids"] for event in events] == cumulative
        assert events[-1]["text"] == complete["text"]
    assert [event["meta_info"]["completion_tokens"] for event in events] == list(range(1, 8))
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * 6


async def test_stream_interval_groups_tokens_after_the_first() -> None:
    """The first at once, then every k, then the rest."""
    async with SimServer("sglang", SimConfig(incremental_streaming_output=True)) as sim:
        answer = await generate(sim, 8, stream=True, sampling={"stream_interval": 3})
    assert [len(event["output_ids"]) for event in answer.events] == [1, 3, 3, 1]


async def test_batch_is_a_list_with_numbered_ids() -> None:
    """One rid for all gets a number for each."""
    async with SimServer("sglang") as sim:
        answer = await post(sim, input_ids=[[5], [6]], rid="b", sampling_params={"max_new_tokens": 2})
        streamed = await post(
            sim, input_ids=[[5], [6]], rid=["x", "y"], stream=True, sampling_params={"max_new_tokens": 2}
        )
    assert [reply["meta_info"]["id"] for reply in answer.json] == ["b_0", "b_1"]
    found = sorted((event["index"], event["meta_info"]["id"]) for event in streamed.events)
    assert found == [(0, "x"), (0, "x"), (1, "y"), (1, "y")]
    assert streamed.body.count(b"[DONE]") == 1


async def test_samples_have_ids_of_their_own() -> None:
    """n > 1 answers a list under fresh ids, prompt by prompt; sampled outputs differ, greedy ones do not."""
    async with SimServer("sglang") as sim:
        sampled = await generate(sim, 5, rid="mine", sampling={"n": 2, "temperature": 1.0})
        greedy = await generate(sim, 5, sampling={"n": 2})
    names = {reply["meta_info"]["id"] for reply in sampled.json}
    assert len(names) == 2 and "mine" not in names and all(len(name) == 32 for name in names)
    assert sampled.json[0]["output_ids"] != sampled.json[1]["output_ids"]
    assert greedy.json[0]["output_ids"] == greedy.json[1]["output_ids"]
    assert all(reply["meta_info"]["cached_tokens"] == 2 for reply in sampled.json)


@pytest.mark.virtual_time
async def test_samples_wait_for_one_more_prefill() -> None:
    """The prompt is computed once before they start."""
    async with SimServer("sglang", SimConfig(prefill_base=0.03)) as sim:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await generate(sim, 1, sampling={"n": 2})
        assert loop.time() - start >= 0.06


async def test_same_rid_in_flight_is_refused_and_free_afterwards() -> None:
    """A 400 when unary, an event in a 200 when streamed."""
    async with SimServer("sglang", SimConfig(stall_after=1)) as sim:
        client = await begin(sim, 3000, rid="dup", stream=True, headers=[("X-Sim-Token-Delay", "0.05")])
        await sim.streaming()
        unary, streamed = await generate(sim, rid="dup"), await generate(sim, rid="dup", stream=True)
        client.leave()
        await sim.idle()
    async with SimServer("sglang") as sim:
        again = [(await generate(sim, rid="dup")).status for _ in range(2)]
    message = "Duplicate request ID detected: dup"
    assert (unary.status, unary.json) == (400, {"error": {"message": message}})
    assert streamed.status == 200
    assert streamed.events == [
        {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}
    ]
    assert again == [200, 200]


@pytest.mark.virtual_time
async def test_abort_or_disconnect_ends_a_request_with_what_it_has() -> None:
    """By its rid, by an update of the weight version, or because the client of a stream disconnects."""
    async with SimServer("sglang", SLOW) as sim:
        stream = await begin(sim, 3000, rid="s", stream=True)
        unary = await begin(sim, 3000, rid="u")
        remaining = await begin(sim, 3000, rid="l", stream=True)
        await sim.streaming(2)
        remaining.leave()
        gone, aborted = await sim.client_gone(), await sim.aborted()
        assert gone is aborted and gone.aborted == gone.client_gone
        assert (await control(sim, "/abort_request", rid="s")).body == b""
        await control(sim, "/update_weight_version", new_version="v2")
        events, reply = (await stream.answer()).events, (await unary.answer()).json
        for client in (stream, unary):
            client.leave()
        call = await sim.abort_called()
    assert (call.ids, call.hit, call.everything) == (("s",), 1, False)
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert events[-1]["meta_info"]["finish_reason"] == reply["meta_info"]["finish_reason"] == reason
    assert len(reply["output_ids"]) == reply["meta_info"]["completion_tokens"] < 3000


async def test_sampling_follows_stop_ids_and_seeds() -> None:
    """``ignore_eos`` switches stop ids off; the same seed gives the same tokens, random sampling never."""
    async with SimServer("sglang") as sim:
        tokens = ids(await generate(sim, 6))
        stopped = (await generate(sim, 6, sampling={"stop_token_ids": [tokens[2]]})).json
        ignored = ids(await generate(sim, 6, sampling={"stop_token_ids": [tokens[2]], "ignore_eos": True}))
        late = ids(await generate(sim, 6, sampling={"stop_token_ids": [tokens[0]], "min_new_tokens": 3}))
        seeds = [7, 7, 8, None, None]
        seeded = [
            ids(await generate(sim, 8, sampling={"temperature": 1.0, "sampling_seed": seed}))
            for seed in seeds
        ]
    async with SimServer("sglang", SimConfig(random_sampling=True)) as sim:
        random = [ids(await generate(sim, 8, sampling={"temperature": 1.0})) for _ in range(2)]
    assert stopped["output_ids"] == tokens[:3]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": tokens[2]}
    assert ignored == tokens and len(late) >= 3 and tokens[0] not in late[:3]
    assert seeded[0] == seeded[1] != seeded[2] and seeded[3] == seeded[4]
    assert random[0] != random[1]


async def test_abort_ends_requests_whose_id_begins_with_the_aborted_one() -> None:
    """The engine's prefix match, but only for an id that is itself in flight."""
    async with SimServer("sglang", SLOW) as sim:
        clients = [await begin(sim, 3000, rid=rid) for rid in ("job-1", "job-10", "other")]
        await sim.arrived(3)
        await control(sim, "/abort_request", rid="job")
        assert sim.running == 3
        await control(sim, "/abort_request", rid="job-1")
        assert sim.running == 1
        assert sim.aborts[-1].hit == 2
        for client in clients:
            client.leave()


async def test_disconnect_from_a_stream_ends_requests_whose_id_begins_with_its_own() -> None:
    """The request with the longer id is aborted, too."""
    async with SimServer("sglang", SLOW) as sim:
        short = await begin(sim, 3000, rid="job-1", stream=True)
        longer = await begin(sim, 3000, rid="job-10", stream=True)
        await sim.streaming(2)
        short.leave()
        events = (await longer.answer()).events
        longer.leave()
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"


async def test_abort_of_samples_by_their_rid_does_nothing() -> None:
    async with SimServer("sglang", SLOW) as sim:
        client = await begin(sim, 3000, rid="n2", sampling={"n": 2})
        await sim.until(lambda: sim.running == 2)
        await control(sim, "/abort_request", rid="n2")
        assert sim.running == 2
        await control(sim, "/abort_request", abort_all=True)
        replies = (await client.answer()).json
        client.leave()
    assert [reply["meta_info"]["finish_reason"]["type"] for reply in replies] == ["abort", "abort"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("background", [False, True])
async def test_disconnect_during_a_unary_call_is_noticed_by_a_poll(background: bool) -> None:
    """Until then the engine works on; with ``background`` it does so to the end."""
    config = SimConfig(token_delay=0.005, unary_disconnect_poll=0.2)
    async with SimServer("sglang", config) as sim:
        client = await begin(sim, 80, background=background)
        await sim.arrived()
        client.leave()
        gone = await sim.client_gone()
        assert sim.running == 1
        await sim.idle()
        assert gone.client_gone is not None
        if background:
            assert sim.engine.scheduler.generated_tokens == 80
        else:
            assert gone.aborted is not None
            assert gone.aborted - gone.client_gone >= 0.1


async def test_full_queue_refuses_in_both_forms() -> None:
    """503 when unary; an abort chunk without prompt_tokens in a 200 when streamed."""
    config = SimConfig(token_delay=0.005, max_running=1, max_queued=1)
    async with SimServer("sglang", config) as sim:
        clients = [await begin(sim, 3000, rid=rid) for rid in ("runs", "waits")]
        await sim.until(lambda: sim.waiting == 1)
        unary, streamed = await generate(sim), await generate(sim, rid="a2", stream=True)
        for client in clients:
            client.leave()
    assert unary.status == 503
    message = "The request queue is full."
    assert unary.json == {"object": "error", "message": message, "type": "503", "param": None, "code": 503}
    assert streamed.status == 200
    meta = streamed.events[0]["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "status_code": 503, "message": message}
    assert "prompt_tokens" not in meta and meta["completion_tokens"] == 0


async def test_abort_in_the_queue_echoes() -> None:
    async with SimServer("sglang", SimConfig(token_delay=0.005, max_running=1)) as sim:
        first = await begin(sim, 3000)
        await sim.until(lambda: sim.running == 1)
        second = await begin(sim, 3000, rid="q")
        await sim.until(lambda: sim.waiting == 1)
        await control(sim, "/abort_request", rid="q")
        answer = await second.answer()
        first.leave()
        second.leave()
    assert answer.status == 200
    meta = answer.json["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert "prompt_tokens" not in meta


async def test_larger_priority_runs_first_and_evicts() -> None:
    """In a full queue the least important one is refused in its favour."""
    config = SimConfig(token_delay=0.002, max_running=1, max_queued=1, priority_scheduling=True)
    async with SimServer("sglang", config) as sim:
        running = await begin(sim, 3000, rid="run")
        await sim.until(lambda: sim.running == 1)
        low = await begin(sim, 5, priority=1)
        await sim.until(lambda: sim.waiting == 1)
        high = await begin(sim, 5, priority=9)
        evicted = await low.answer()
        await control(sim, "/abort_request", rid="run")
        kept = await high.answer()
        for client in (running, low, high):
            client.leave()
    assert evicted.status == 503
    assert evicted.json["message"] == "The request is aborted by a higher priority request."
    assert kept.status == 200


async def test_one_bad_prompt_fails_its_batch() -> None:
    async with SimServer("sglang", SLOW) as sim:
        batch = {"input_ids": [[5, 6, 7, 8], [5]], "return_logprob": True, "logprob_start_len": [0, 3]}
        answer = await post(sim, **batch, sampling_params={"max_new_tokens": 3000})
        assert not sim.running
    assert answer.status == 400
    assert "logprob_start_len=3 is higher" in answer.json["error"]["message"]


async def test_pause_holds_new_requests_until_it_is_over() -> None:
    async with SimServer("sglang") as sim:
        await control(sim, "/pause_generation")
        client = await begin(sim)
        await sim.arrived()
        ready = await control(sim, "/ready", "GET")
        assert sim.waiting == 1
        await control(sim, "/continue_generation")
        assert (await client.answer()).status == 200
        client.leave()
    assert ready.status == 503


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_pause_that_keeps_requests_loses_no_token(mode: str) -> None:
    """They stall and go on; retracted ones count the retraction."""
    async with SimServer("sglang", SimConfig(token_delay=0.002)) as sim:
        complete = ids(await generate(sim, 40))
        client = await begin(sim, 40)
        await sim.until(lambda: sim.running == 1)
        await control(sim, "/pause_generation", mode=mode)
        await control(sim, "/continue_generation")
        reply = (await client.answer()).json
        client.leave()
    assert reply["output_ids"] == complete
    assert reply["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)


async def test_weight_versions_tell_which_weights_made_which_tokens() -> None:
    """A change in the middle of a request splits it."""
    async with SimServer("sglang", SLOW) as sim:
        client = await begin(sim, 60, stream=True)
        await client.head()
        for _ in range(3):
            await client.chunk()
        await control(sim, "/update_weight_version", new_version="v2", abort_all_requests=False)
        last = json.loads((await client.answer_rest())[-2].removeprefix(b"data: "))
        client.leave()
    spans = last["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "v2"]
    assert spans[0]["start"] == 0 and spans[0]["end"] == spans[1]["start"] and spans[1]["end"] == 60
    assert last["meta_info"]["weight_version"] == "v2"


async def test_cached_tokens_grow_with_what_was_seen() -> None:
    """All but one of a known prompt, in full pages; adapters and salts have caches of their own."""
    request = {"input_ids": list(range(100, 150)), "sampling_params": {"max_new_tokens": 1}}
    scoring = {"return_logprob": True, "logprob_start_len": 0}
    variants: list[dict[str, Any]] = [{}, {}, {"cache_salt": "a"}, scoring]
    async with SimServer("sglang", SimConfig(page_size=16)) as sim:
        replies = [(await post(sim, **request, **each)).json for each in variants]
    first, again, salted, scored = (reply["meta_info"] for reply in replies)
    assert (first["cached_tokens"], first["cached_tokens_details"]) == (0, None)
    assert (again["cached_tokens"], again["cached_tokens_details"]) == (48, {"device": 48, "host": 0})
    assert salted["cached_tokens"] == scored["cached_tokens"] == 0


async def test_stop_string_ends_and_is_trimmed() -> None:
    """The ids stay complete; a stream never shows a part of the stop string."""
    async with SimServer("sglang") as sim:
        text = (await generate(sim, 6)).json["text"]
        stop = text[len(text) // 2 : len(text) // 2 + 5]
        trimmed = (await generate(sim, 6, sampling={"stop": stop})).json
        kept = (await generate(sim, 6, sampling={"stop": [stop], "no_stop_trim": True})).json
        events = (await generate(sim, 6, stream=True, sampling={"stop": stop})).events
    cut = text.index(stop)
    assert trimmed["text"] == text[:cut] == events[-1]["text"]
    assert trimmed["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert kept["text"].startswith(text[:cut] + stop)
    assert all(trimmed["text"].startswith(event["text"]) for event in events)


@pytest.mark.parametrize(
    "request_body",
    [
        {"input_ids": [5, -1]},
        {"input_ids": [5, 32000]},
        {"input_ids": [[5], []]},
        {"text": ""},
        {"input_ids": [5], "return_logprob": True, "logprob_start_len": -2},
        {"input_ids": [5], "return_logprob": True, "top_logprobs_num": 100_000},
    ],
)
async def test_crashing_input_ends_the_engine(request_body: dict[str, Any]) -> None:
    """Its connections break, it stops listening, and it exits with a code."""
    async with SimServer("sglang") as sim:
        client = await begin(sim, **{"input_ids": None, **request_body})
        assert await sim.exited() == 1
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        client.leave()
        with pytest.raises(ConnectionRefusedError):
            await generate(sim)


async def test_list_where_one_is_due_is_a_plain_500() -> None:
    """And with stream a 200 that breaks off."""
    async with SimServer("sglang") as sim:
        unary = await generate(sim, rid=["a"])
        client = await begin(sim, rid=["a"], stream=True)
        status, _ = await client.head()
        assert await client.reader.read() == b""
        client.leave()
    assert (unary.status, unary.body, status) == (500, b"Internal Server Error", 200)


async def test_logprobs_are_deltas_for_outputs_and_complete_for_prompts() -> None:
    async with SimServer("sglang", SimConfig(incremental_streaming_output=True)) as sim:
        options: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
        events = (await generate(sim, 3, stream=True, **options)).events
        complete = (await generate(sim, 3, **options)).json["meta_info"]
    metas = [event["meta_info"] for event in events]
    assert [len(meta["input_token_logprobs"]) for meta in metas] == [3] * 3
    assert metas[0]["input_token_logprobs"][0] == [None, PROMPT[0], None]
    assert [len(meta["output_token_logprobs"]) for meta in metas] == [1] * 3
    assert [meta["output_token_logprobs_length"] for meta in metas] == [1, 2, 3]
    joined = [row for meta in metas for row in meta["output_token_logprobs"]]
    assert joined == complete["output_token_logprobs"]
    assert [top[0] for top in complete["output_top_logprobs"]] == complete["output_token_logprobs"]
    assert complete["input_top_logprobs"][0] is None


async def test_sigterm_serves_on_until_the_engine_is_empty() -> None:
    """Health fails at once; running and new requests finish; then it leaves with code 0."""
    config = SimConfig(token_delay=0.005, drain_poll=0.02, fast_health=True)
    async with SimServer("sglang", config) as sim:
        client = await begin(sim, 30)
        await sim.until(lambda: sim.running == 1)
        sim.terminate()
        assert (await control(sim, "/health", "GET")).status == 503
        assert (await control(sim, "/ready", "GET")).status == 503
        assert (await generate(sim, 2)).status == 200
        assert (await client.answer()).status == 200
        client.leave()
        assert await sim.exited() == 0
