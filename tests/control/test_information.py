"""Information and load of engines, through a real gateway."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gateway.control.information import merge_loads
from gateway.fleet.worker import Worker
from gateway.formats.routes import Recipients
from gateway.sim import Drop, Reply, SimServer
from gateway.upstream.address import Address
from tests.control.support import NONSTANDARD_JSON
from tests.support.fleet import called, fleet
from tests.support.routes import calls_of

pytestmark = pytest.mark.virtual_time

#: Load probes take scripted replies, too, so a script of a load path must not run out.
ALWAYS = 1000


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_reply_is_that_of_one_worker_unchanged(kind: str) -> None:
    """Bytes, type and query."""
    async with fleet(kind, kind) as of:
        for path in (call.path for call in calls_of(kind, Recipients.ANY)):
            for sim in of.sims:
                sim.behave(Reply(body=b'{ "x" :1e-7 }', content_type="application/json; odd"), path=path)
            seen = sum(len(called(sim, path)) for sim in of.sims)
            reply = await of.gateway.client.get(f"{path}?config_format=%6Ason")
            assert (reply.status_code, reply.content) == (200, b'{ "x" :1e-7 }')
            assert reply.headers["content-type"] == "application/json; odd"
            arrivals = [arrival for sim in of.sims for arrival in called(sim, path)]
            assert len(arrivals) == seen + 1
            assert f"{path}?config_format=%6Ason".encode() in {arrival.target for arrival in arrivals}


async def test_next_worker_is_asked_if_one_fails() -> None:
    async with fleet("sglang", "sglang", "sglang") as of:
        of.sims[0].behave(Reply(status=500), path="/model_info")
        of.sims[1].behave(Drop(), path="/model_info")
        before = len(called(of.sims[2], "/model_info"))
        reply = await of.gateway.client.get("/model_info")
        assert (reply.status_code, len(called(of.sims[2], "/model_info"))) == (200, before + 1)


async def test_refusal_of_all_workers_is_relayed() -> None:
    """An engine without its development mode has no such route."""
    async with fleet("vllm", config=None) as of:
        of.sims[0].behave(Reply(status=404, body=b'{"detail":"Not Found"}'), path="/weight_info")
        reply = await of.gateway.client.get("/weight_info")
        assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})


async def test_no_worker_is_a_503_and_one_without_a_reply_a_502() -> None:
    async with fleet() as of:
        reply = await of.gateway.client.get("/model_info")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["code"] == "no_worker"
    async with fleet("sglang") as of:
        of.sims[0].behave(Drop(), path="/model_info")
        reply = await of.gateway.client.get("/model_info")
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "no_answer")


async def test_head_is_answered_without_a_body() -> None:
    async with fleet("sglang") as of:
        reply = await of.gateway.client.head("/model_info")
        assert (reply.status_code, reply.content) == (200, b"")


async def test_end_of_any_session_succeeds() -> None:
    async with fleet() as of:
        for query in ("?session_id=x", "", "?session_id="):
            reply = await of.post(f"/finish_session{query}")
            assert (reply.status_code, reply.json()["status"]) == (200, "ok")


def script_versions(sims: Sequence[SimServer]) -> None:
    """Script the reply of older SGLang servers. No probe uses this path."""
    for sim in sims:
        sim.behave(Reply(body=b'{"weight_version":"default"}'), path="/get_weight_version", times=4)


async def test_paused_worker_is_asked_if_there_is_no_other() -> None:
    """Trainers ask for the weight version while all are paused."""
    async with fleet("sglang", "sglang") as of:
        script_versions(of.sims)
        await of.post("/pause_generation", json={})
        assert (await of.gateway.client.get("/get_weight_version")).status_code == 200
        await of.post(f"/continue_generation?worker={of.worker(1).id}", json={})
        before = len(called(of.sims[1], "/get_weight_version"))
        await of.gateway.client.get("/get_weight_version")
        assert len(called(of.sims[1], "/get_weight_version")) == before + 1


async def test_named_worker_is_the_one_that_is_asked() -> None:
    async with fleet("sglang", "sglang") as of:
        script_versions(of.sims)
        named = {"x-worker-id": of.worker(1).id}
        reply = await of.gateway.client.get("/get_weight_version", headers=named)
        assert (reply.status_code, called(of.sims[0], "/get_weight_version")) == (200, [])
        assert (await of.gateway.client.get("/model_info?worker=nobody")).status_code == 404


async def test_loads_of_all_workers_are_joined_with_their_names() -> None:
    async with fleet("sglang", "sglang", "vllm") as of:
        of.sims[1].behave(Reply(status=500), path="/v1/loads", times=ALWAYS)
        reply = await of.gateway.client.get("/v1/loads?include=core")
        merged = reply.json()
        assert {load["worker"] for load in merged["loads"]} <= {sim.url for sim in of.sims[:2]}
        assert of.sims[0].url in {load["worker"] for load in merged["loads"]}
        assert merged["version"]
        load = (await of.gateway.client.get("/load")).json()
        assert load == {"server_load": 0, "workers": [{"worker": of.sims[2].url, "server_load": 0}]}


async def test_load_that_is_no_standard_json_is_shown_as_text() -> None:
    async with fleet("sglang", "sglang", probe_interval_secs=60) as of:
        for load, shown in NONSTANDARD_JSON:
            for sim in of.sims:
                sim.behave(Reply(body=b'{"loads":[%b]}' % load), path="/v1/loads")
            reply = await of.gateway.client.get("/v1/loads")
            assert reply.status_code == 200
            assert [each["m"] for each in reply.json()["loads"]] == [shown["m"]] * 2


async def test_load_that_no_worker_reports_is_a_502_or_their_common_refusal() -> None:
    """A refusal if the call is invalid, or of another version of the engine."""
    async with fleet("sglang", "sglang", probe_interval_secs=60) as of:
        wrong = await of.gateway.client.get("/v1/loads?dp_rank=x")
        assert (wrong.status_code, "dp_rank" in wrong.json()["message"]) == (400, True)
        for sim in of.sims:
            sim.behave(Reply(status=404), path="/v1/loads", times=ALWAYS)
        gone = await of.gateway.client.get("/get_load")
        assert (gone.status_code, gone.json()) == (404, {"detail": "Not Found"})
        of.sims[0].behave(Reply(status=500), path="/get_load", times=ALWAYS)
        reply = await of.gateway.client.get("/get_load")
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "no_answer")


async def test_load_is_read_from_the_path_that_the_engine_s_version_has() -> None:
    """The reply has the shape of the path that the client called."""
    async with fleet("sglang", "sglang", probe_interval_secs=60) as of:
        old, new = of.sims
        reported = {"dp_rank": 0, "num_reqs": 7, "num_waiting_reqs": 3, "num_tokens": 9}
        old.behave(Reply(body=json.dumps([reported]).encode()), path="/get_load", times=ALWAYS)
        old.behave(Reply(status=404), path="/v1/loads", times=ALWAYS)
        reply = await of.gateway.client.get("/get_load")
        before = {load.pop("worker"): load for load in reply.json()}
        assert (reply.headers["x-workers-silent"], before[old.url]) == ("0", reported)
        known = {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0}
        assert {name: before[new.url][name] for name in known} == known
        reply = await of.gateway.client.get("/v1/loads")
        since = {load.pop("worker"): load for load in reply.json()["loads"]}
        assert since[old.url] == {"dp_rank": 0, "num_running_reqs": 4, "num_waiting_reqs": 3}
        assert since[new.url]["num_running_reqs"] == 0
        # Of one worker, and of one rank, which the older path does not have.
        reply = await of.gateway.client.get("/get_load", headers={"x-worker-id": of.worker(1).id})
        assert [load["num_reqs"] for load in reply.json()] == [0]
        assert [
            load["worker"] for load in (await of.gateway.client.get("/v1/loads?dp_rank=0")).json()["loads"]
        ] == [new.url]


async def test_invalid_load_is_no_load() -> None:
    async with fleet("sglang", probe_interval_secs=60) as of:
        of.sims[0].behave(Reply(body=b'{"loads":[{"num_running_reqs":"x"}]}'), path="/v1/loads", times=ALWAYS)
        assert (await of.gateway.client.get("/get_load")).status_code == 404


def test_merged_documents_keep_the_shape_of_each() -> None:
    a, b = Worker(Address.parse("http://a:1")), Worker(Address.parse("http://b:1"))
    one, two = {"loads": [{"n": 1}], "num": 1, "s": "x"}, {"loads": [{"n": 2}], "num": 3, "s": "y"}
    merged = {"loads": [{"worker": a.url, "n": 1}, {"worker": b.url, "n": 2}], "num": 4, "s": "x"}
    assert merge_loads([(a, one), (b, two)]) == merged
    assert merge_loads([(a, [{"n": 1}, 7]), (b, {"odd": 1})]) == [{"worker": a.url, "n": 1}, 7]
    assert merge_loads([(a, {"on": True, "none": None}), (b, {})]) == {
        "on": True,
        "none": None,
        "workers": [{"worker": a.url, "on": True, "none": None}, {"worker": b.url}],
    }
