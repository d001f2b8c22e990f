"""Control calls through a real gateway to (simulated) engines."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.catalog import CatalogError
from gateway.fleet.states import WorkerState
from gateway.formats.routes import Recipients
from gateway.settings import SettingsError, load_settings
from gateway.sim import Drop, Reply, Script, Silence, SimConfig
from gateway.wiring.app import create_app
from tests.control.support import GENERATE, NONSTANDARD_JSON
from tests.support.fleet import called, fleet, states
from tests.support.gateway import until
from tests.support.routes import calls_of

pytestmark = pytest.mark.virtual_time

REFUSED = b'{"success":false}'
#: Nothing that JSON tools would spell so: spaces, an escape, an order of its own.
BODY = b'{ "zeta" : 1e-7, "tags":["weights", "kv_cache"] ,"a":"\\u00e9" }'


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_call_is_forwarded_byte_for_byte(kind: str) -> None:
    """Body, query, content type and the headers of the client; nothing is added."""
    headers = {"content-type": "application/x-odd", "x-own": "a  b", "authorization": "Bearer k"}
    async with fleet(kind) as of:
        sim = of.sims[0]
        for call in calls_of(kind, Recipients.ALL, Recipients.ONE):
            target, method = f"{call.path}?a=%2F+x&a=&b", call.methods[-1]
            body = BODY if method == "POST" else b""
            own = Reply(body=b"mine", headers=(("x-engine", "1"),), content_type="text/plain")
            for _ in range(2):
                sim.behave(own, path=call.path)
            reply = await of.gateway.client.request(method, target, content=body, headers=headers)
            assert (reply.status_code, reply.content, reply.headers["x-engine"]) == (200, b"mine", "1")
            assert reply.headers["content-type"] == "text/plain"
            # Probes ask some of these as well, without a query.
            (arrival,) = (each for each in called(sim, call.path) if each.target == target.encode())
            assert arrival.method == method.encode()
            assert arrival.body == body
            sent = dict(arrival.headers)
            assert {name.encode(): value.encode() for name, value in headers.items()}.items() <= sent.items()
            usual = {b"host", b"via", b"content-length", b"accept", b"user-agent"}
            assert set(sent) - usual == {name.encode() for name in headers}


async def test_call_goes_to_every_worker_that_speaks_its_dialect() -> None:
    async with fleet("sglang", "vllm", "sglang") as of:
        reply = await of.post("/flush_cache")
        assert reply.status_code == 200
        summary = reply.json()
        assert (summary["success"], summary["message"]) == (True, "accepted by 2 of 2 workers")
        assert [row["worker"] for row in summary["results"]] == [of.sims[0].url, of.sims[2].url]
        assert all(row == {**row, "status": 200} for row in summary["results"])
        assert all(row["body"].startswith("Cache flushed.\n") for row in summary["results"])
        assert (await of.gateway.client.get("/flush_cache")).status_code == 200
        methods = [[arrival.method for arrival in called(sim, "/flush_cache")] for sim in of.sims]
        assert methods == [[b"POST", b"GET"], [], [b"POST", b"GET"]]
        assert (await of.gateway.client.get("/pause_generation")).status_code == 405  # as of the engine


async def test_one_failure_is_a_502_with_all_results() -> None:
    """A refusal, no reply, no reply in time, and a refusal in a 200. No shape hides it."""
    full = Reply(status=500, body=b'{"error":"full"}')
    replies: list[Script] = [Reply(), full, Drop(), Silence(), Reply(body=REFUSED)]
    async with fleet(*["sglang"] * 5, control_timeout_secs=0.2) as of:
        for shape in ("summary", "plain"):
            for sim, behaviour in zip(of.sims, replies, strict=True):
                sim.behave(behaviour, path="/flush_cache")
            reply = await of.post("/flush_cache", headers={"x-reply-shape": shape})
            rows = reply.json()["results"]
            assert (reply.status_code, reply.json()["success"]) == (502, False)
            assert reply.json()["message"] == "accepted by 1 of 5 workers"
            assert [row["status"] for row in rows] == [200, 500, None, None, 200]
            assert (rows[1]["body"], rows[3]["error"]) == ({"error": "full"}, "no answer within 0.2 s")
            assert rows[2]["error"]


async def test_common_4xx_of_all_workers_keeps_its_status() -> None:
    """It is an error of the client, so a retry is useless."""
    async with fleet("sglang", "sglang") as of:
        reply = await of.post("/update_weights_from_disk", json={})
        assert (reply.status_code, reply.json()["message"]) == (400, "accepted by 0 of 2 workers")


async def test_held_worker_is_called_and_dead_one_is_listed_as_skipped() -> None:
    async with fleet("sglang", "sglang", "sglang") as of:
        await of.post(f"/workers/{of.worker(1).id}/cordon")
        await of.sims[2].kill()
        await until(lambda: of.worker(2).state is WorkerState.DEAD)
        reply = await of.post("/flush_cache")
        assert reply.status_code == 200
        assert [row["worker"] for row in reply.json()["results"]] == [sim.url for sim in of.sims[:2]]
        (skipped,) = reply.json()["skipped"]
        assert skipped["worker"] == of.sims[2].url and skipped["reason"].startswith("dead")


async def test_fleet_without_a_worker_is_a_503_with_retry_after() -> None:
    async with fleet() as of:
        reply = await of.post("/pause_generation")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker")
        assert reply.headers["retry-after"] == "1"


@pytest.mark.parametrize("shape", ["summary", "plain"])
async def test_header_selects_the_shape_of_the_reply(shape: str) -> None:
    async with fleet("vllm") as one, fleet("vllm", "vllm") as two:
        for of in (one, two):
            reply = await of.post("/pause?mode=keep", headers={"x-reply-shape": shape})
            assert ("results" in reply.json()) is (shape == "summary")
            assert shape == "summary" or reply.json() == {"status": "paused"}


async def test_invalid_call_is_refused_before_any_worker_is_called() -> None:
    async with fleet("sglang", body_limit_mb=1) as of:
        large = b" " * (1024 * 1024 + 1)
        for call, status, code in (
            (of.post("/flush_cache", headers={"x-reply-shape": "round"}), 400, "invalid_shape"),
            (of.post("/flush_cache", content=large), 413, "body_too_large"),
            (of.post("/flush_cache?worker=nobody"), 404, "worker_not_found"),
        ):
            reply = await call
            assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
        assert not called(of.sims[0], "/flush_cache")


async def test_reply_that_is_large_or_no_standard_json_is_shown_as_text() -> None:
    """The call succeeded, and its client must learn that."""
    large = json.dumps(["x" * 70_000])
    async with fleet("sglang", "sglang") as of:
        for body, shown in (*NONSTANDARD_JSON, (large.encode(), large[:2000])):
            for sim in of.sims:
                sim.behave(Reply(body=body), path="/flush_cache")
            reply = await of.post("/flush_cache")
            assert (reply.status_code, [row["body"] for row in reply.json()["results"]]) == (200, [shown] * 2)


# -- one worker


@pytest.mark.parametrize("by", ["query-id", "query-url", "header"])
async def test_only_the_named_worker_is_called_and_its_reply_is_unchanged(by: str) -> None:
    """The name is not part of the forwarded call."""
    async with fleet("sglang", "sglang") as of:
        worker = of.worker(1)
        query = {"query-id": {"worker": worker.id}, "query-url": {"worker": worker.url}, "header": {}}[by]
        headers = {"x-worker-id": worker.id} if by == "header" else {}
        reply = await of.post("/flush_cache", params={**query, "timeout": "1"}, headers=headers)
        assert reply.status_code == 200
        assert reply.text.startswith("Cache flushed.\n")
        assert not called(of.sims[0], "/flush_cache")
        (arrival,) = called(of.sims[1], "/flush_cache")
        assert arrival.target == b"/flush_cache?timeout=1"
        assert b"x-worker-id" not in dict(arrival.headers)


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_call_for_one_worker_is_refused_if_there_are_several(kind: str) -> None:
    """Its body holds the rank of one worker. The error says how to name it."""
    async with fleet(kind, kind) as of:
        for call in calls_of(kind, Recipients.ONE):
            for sim in of.sims:
                sim.behave(Reply(), path=call.path)
            reply = await of.gateway.client.request(call.methods[0], call.path)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (409, "one_worker_only")
            assert "?worker=" in error["message"] and "X-Worker-Id" in error["message"]
            assert not any(called(sim, call.path) for sim in of.sims)
            one = {"worker": of.worker().id}
            reply = await of.gateway.client.request(call.methods[0], call.path, params=one)
            assert (reply.status_code, len(called(of.sims[0], call.path))) == (200, 1)


async def test_unreachable_worker_is_a_502_and_counts_for_a_call_for_one_worker() -> None:
    """It is still a member of the group."""
    async with fleet("sglang", "sglang") as of:
        await of.sims[1].kill()
        reply = await of.post(f"/flush_cache?worker={of.sims[1].url}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "worker_failed")
        assert of.worker(1).state is WorkerState.DEAD
        assert (await of.post("/init_weights_update_group", json={})).status_code == 409


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/flush_cache", {}),
        ("POST", "/abort_request", {"abort_all": True}),
        ("GET", "/server_info?worker={url}", None),
        ("GET", "/v1/loads", None),
        ("GET", "/engine_metrics", None),
        ("POST", "/generate", GENERATE),
        ("POST", "/v1/chat/completions", {"messages": []}),
    ],
)
async def test_call_that_is_refused_tells_that_the_worker_is_dead(
    method: str, path: str, body: object
) -> None:
    """As a refused request does, on a relayed route, too: the next one is sent to another worker at once."""
    async with fleet("sglang", "sglang", probe_interval_secs=1000) as of:
        for sim in of.sims:
            await sim.kill()
        await of.gateway.client.request(method, path.format(url=of.sims[0].url), json=body)
        assert (of.worker().state, of.worker().reason) == (WorkerState.DEAD, "could not be reached")


# -- pauses

PAUSES = [
    ("sglang", "/pause_generation", "/continue_generation"),
    ("sglang", "/release_memory_occupation", "/resume_memory_occupation"),
    ("vllm", "/pause", "/resume"),
    ("vllm", "/sleep", "/wake_up"),
]


@pytest.mark.parametrize(("kind", "pause", "resume"), PAUSES)
async def test_paused_worker_gets_no_request_until_it_is_resumed(kind: str, pause: str, resume: str) -> None:
    """Good probes do not change that."""
    async with fleet(kind, kind, probe_interval_secs=0.02) as of:
        assert (await of.post(f"{pause}?worker={of.worker().id}", json={})).status_code == 200
        assert (of.worker().state, of.worker(1).state) == (WorkerState.CORDONED, WorkerState.READY)
        before = len(of.sims[0].all_requests)
        await until(lambda: len(of.sims[0].all_requests) >= before + 3)
        assert of.worker().state is WorkerState.CORDONED
        assert "paused" in of.worker().reason
        assert (await of.post(f"{resume}?worker={of.worker().id}", json={})).status_code == 200
        await until(lambda: of.worker().usable)


async def test_workers_are_called_concurrently_and_get_no_request_while_they_are_paused() -> None:
    """A slow worker does not delay the call to another one."""
    async with fleet("sglang", "sglang") as of:
        for sim in of.sims:
            sim.behave(Silence(), path="/pause_generation")
        call = asyncio.ensure_future(of.post("/pause_generation"))
        await until(lambda: all(called(sim, "/pause_generation") for sim in of.sims))
        assert states(of) == ["held", "held"]
        call.cancel()


async def test_worker_that_refuses_a_call_stays_as_it_is() -> None:
    """One that did not pause serves, one that did not resume stays paused."""
    async with fleet("sglang", "sglang") as of:
        of.sims[0].behave(Reply(status=500), path="/pause_generation")
        assert (await of.post("/pause_generation", json={})).status_code == 502
        assert states(of) == ["ready", "held"]
        await of.post("/pause_generation", json={})
        of.sims[0].behave(Reply(status=500), path="/continue_generation")
        assert (await of.post("/continue_generation", json={})).status_code == 502
        await until(lambda: states(of) == ["held", "ready"])


async def test_memory_resumed_in_parts_ends_the_pause_with_the_last() -> None:
    async with fleet("sglang") as of:
        await of.post("/release_memory_occupation", json={})
        await of.post("/resume_memory_occupation", json={"tags": ["weights"]})
        assert of.worker().state is WorkerState.CORDONED
        await of.post("/resume_memory_occupation", json={"tags": ["kv_cache"]})
        assert of.worker().usable


async def test_worker_that_is_opened_by_hand_forgets_its_pause() -> None:
    async with fleet("sglang") as of:
        await of.post("/release_memory_occupation", json={})
        await of.post(f"/workers/{of.worker().id}/uncordon")
        assert of.worker().usable
        await of.post("/pause_generation", json={})
        await of.post("/continue_generation", json={})
        assert of.worker().usable


async def test_running_requests_of_a_paused_worker_continue() -> None:
    """A pause only affects new requests."""
    async with fleet("sglang", config=SimConfig(token_delay=0.01)) as of:
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 30}}
        call = asyncio.ensure_future(of.post("/generate", json=body))
        await of.sims[0].arrived()
        await of.post("/pause_generation", json={"mode": "in_place"})
        await of.post("/continue_generation", json={})
        assert len((await call).json()["output_ids"]) == 30


async def test_control_route_that_is_added_reaches_those_it_names() -> None:
    """All workers, the one that the call names, or any one."""
    added = ("all=/a", "one=PUT|POST /b,any=/c")
    async with fleet("sglang", "vllm", control_path=added) as of:
        for path in ("/a", "/b", "/c"):
            for sim in of.sims:
                sim.behave(Reply(body=b"{}"), path=path)
        reply = await of.post("/a")
        assert (reply.status_code, reply.json()["message"]) == (200, "accepted by 2 of 2 workers")
        assert (await of.post("/b")).status_code == 409
        named = {"worker": of.sims[1].url}
        assert (await of.gateway.client.put("/b", params=named)).status_code == 200
        assert (await of.gateway.client.get("/c")).status_code == 200
        counts = [[len(called(sim, path)) for sim in of.sims] for path in ("/a", "/b", "/c")]
        assert counts[:2] == [[1, 1], [0, 1]] and sum(counts[2]) == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("/x", "all=, one= or any="),
        ("some=/x", "all=, one= or any="),
        ("all=x", "plain path"),
        ("all=/x/*", "without"),
        ("any=POST /x", "GET only"),
        ("all=/pause", "a route already"),
        ("all=/workers", "two routes"),
    ],
)
def test_control_route_that_cannot_be_added_is_a_start_up_error(entry: str, message: str) -> None:
    with pytest.raises((CatalogError, SettingsError), match=f"--control-path.*{message}"):
        create_app(load_settings({"control_path": (entry,)}))
