"""Other inference routes, passed on by a whole gateway. (The contract: tests/contract/test_relayed.py)"""

from __future__ import annotations

import json

import pytest

from gateway.app import create_app
from gateway.calls import RELAY_PATHS
from gateway.catalog import CatalogError
from gateway.settings import Settings
from gateway.sim import Half, Reply, Silence, SimConfig, SimServer
from tests.control.test_fanout import called, fleet
from tests.support import RawClient, rig, until

BODY = b'{ "messages" : [] , "x":1e-7,"model":"base" }'
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_routes_are_served_by_the_engines_that_have_them(kind: str) -> None:
    """Byte for byte, reply and all; where no engine of the fleet has one, it is a 503."""
    async with fleet(kind) as of:
        sim = of.sims[0]
        for path, formats in RELAY_PATHS.items():
            sim.behave(Reply(body=b'{ "y" :1 }', headers=(("x-engine", "1"),)), path=path)
            reply = await of.gateway.client.post(path, content=BODY, headers={"x-own": "a  b"})
            if kind not in formats:
                assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
                assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
                continue
            assert (reply.status_code, reply.content, reply.headers["x-engine"]) == (200, b'{ "y" :1 }', "1")
            (arrival,) = called(sim, path)
            assert (arrival.method, arrival.body) == (b"POST", BODY)
            assert dict(arrival.headers)[b"x-own"] == b"a  b"


async def test_requests_are_spread_over_engines_of_both_kinds() -> None:
    async with fleet("sglang", "vllm", "sglang", "vllm", router_mode="round_robin") as of:
        for sim in of.sims:
            sim.behave(Reply(body=b"{}"), path=CHAT, times=8)
        for _ in range(8):
            await of.gateway.client.post(CHAT, content=b"{}")
        assert [len(called(sim, CHAT)) for sim in of.sims] == [2, 2, 2, 2]


async def test_model_is_chosen_by_the_body_or_by_a_header() -> None:
    async with (
        SimServer("vllm", SimConfig(model="one")) as one,
        SimServer("vllm", SimConfig(model="two")) as two,
    ):
        async with rig(one.url, two.url) as gateway:
            for sim in (one, two):
                sim.behave(Reply(body=b"{}"), path=CHAT, times=4)
            post = gateway.client.post
            await post(CHAT, json={"model": "two"})
            await post(CHAT, json={}, headers={"x-model": "two"})
            assert [len(called(sim, CHAT)) for sim in (one, two)] == [0, 2]
            assert (await post(CHAT, json={})).status_code == 400
            reply = await post(CHAT, json={"model": "three"})
            assert (reply.status_code, reply.json()["error"]["param"]) == (404, "model")


async def test_client_that_leaves_ends_the_request_at_the_engine() -> None:
    async with fleet("vllm") as of:
        of.sims[0].behave(Silence(), path=CHAT)
        client = await RawClient.connect(of.gateway.port)
        client.request(CHAT, BODY)
        await until(lambda: bool(called(of.sims[0], CHAT)))
        client.leave()
        (arrival,) = called(of.sims[0], CHAT)
        await until(lambda: arrival.client_gone is not None)
        await until(lambda: not of.gateway.app.lifecycle.open_exchanges)


async def test_reply_that_breaks_off_is_a_502_and_generated_once() -> None:
    async with fleet("vllm", "vllm") as of:
        for sim in of.sims:
            sim.behave(Half(body=b'{"half'), path=CHAT)
        reply = await of.gateway.client.post(CHAT, content=BODY)
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, 502)
        assert sum(len(called(sim, CHAT)) for sim in of.sims) == 1


async def test_other_methods_are_refused_with_those_there_are() -> None:
    async with fleet() as of:
        reply = await of.gateway.client.get(CHAT)
        assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


async def test_added_path_is_passed_on_to_the_format_it_names() -> None:
    async with fleet("sglang", "vllm", relay_path=("/pooling,vllm=/v1/odd",)) as of:
        for path, shares in (("/pooling", (1, 1)), ("/v1/odd", (0, 2))):
            for sim in of.sims:
                sim.behave(Reply(body=b"{}"), path=path, times=9)
            for _ in range(2):
                assert (await of.gateway.client.post(path, content=b"{}")).status_code == 200
            if path == "/v1/odd":
                assert tuple(len(called(sim, path)) for sim in of.sims) == shares
        assert (await of.gateway.client.post("/v1/odder", content=b"{}")).status_code == 404


@pytest.mark.parametrize(
    ("path", "said"),
    [("/generate", "two endpoints"), ("/workers", "clashes"), ("nope=/x", "unknown format 'nope'")],
)
def test_path_that_cannot_be_added_is_a_start_up_error(path: str, said: str) -> None:
    with pytest.raises(CatalogError, match=said) as failure:
        create_app(Settings(relay_path=(path,)))
    assert "DYN_RELAY_PATHS" in str(failure.value)


async def test_routes_are_on_the_page_of_the_api() -> None:
    async with fleet() as of:
        paths = (await of.gateway.client.get("/openapi.json")).json()["paths"]
        assert set(RELAY_PATHS) <= set(paths)
        assert paths[CHAT]["post"]["tags"] == ["inference"]


async def test_stream_is_relayed_event_by_event() -> None:
    event = b"data: " + json.dumps({"choices": [{"delta": {"content": "a"}}]}).encode() + b"\n\n"
    whole = event * 3 + b"data: [DONE]\n\n"
    async with fleet("vllm") as of:
        of.sims[0].behave(Reply(body=whole, content_type="text/event-stream"), path=CHAT)
        reply = await of.gateway.client.post(CHAT, content=b'{"stream":true}')
        assert (reply.content, reply.headers["content-type"]) == (whole, "text/event-stream")
        text = (await of.gateway.client.get("/metrics")).text
        assert "dynamo_frontend_time_to_first_token_seconds_count" in text
        assert 'endpoint="chat_completions",request_type="stream",status="success"' in text
