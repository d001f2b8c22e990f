"""Which route a path means: a slash at its end, which base URLs of users have, names the same route."""

from __future__ import annotations

import json

import pytest

from gateway.sim import Reply, SimConfig, SimServer
from tests.support.gateway import generates, rig
from tests.support.generate import KINDS, body_of

KEYS = {"api_key": "k", "admin_api_key": "admin"}


@pytest.mark.parametrize(
    ("method", "path", "same", "status"),
    [
        *(("GET", path + "/", path, 200) for path in ("/health", "/v1/models", "/workers", "/docs")),
        ("POST", "/flush_cache/", "/flush_cache", 200),
        ("GET", "/heal%74h/", "/health", 200),
        ("DELETE", "/health/", "/health", 405),
        ("GET", "/nothing/", "/nothing", 404),
        ("GET", "/health//", "/health//", 404),
        ("GET", "/generate//", "/generate//", 404),
    ],
)
async def test_control_route_is_the_same_with_a_slash(method: str, path: str, same: str, status: int) -> None:
    """Also for the key that it requires: what is open without a slash is open with one, and nothing else."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **KEYS) as gateway:
        for headers in ({}, {"x-api-key": "k"}, {"x-api-key": "admin"}):
            replies = [await gateway.client.request(method, each, headers=headers) for each in (path, same)]
            assert replies[0].status_code == replies[1].status_code
        assert replies[0].status_code == status


async def test_route_of_one_worker_is_the_same_with_a_slash() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        worker = gateway.app.fleet.workers[0]
        for name in (worker.id, worker.url, f"{sim.url}/".replace(":", "%3A").replace("/", "%2F")):
            shown = await gateway.client.get(f"/workers/{name}/")
            assert (shown.status_code, shown.json()["url"]) == (200, sim.url)
            assert (await gateway.client.post(f"/workers/{name}/cordon/")).status_code == 200
            assert worker.cordons
            assert (await gateway.client.post(f"/workers/{name}/uncordon/")).status_code == 200
            assert not worker.cordons
        assert (await gateway.client.get(f"/workers/{worker.id}//")).status_code == 404
        assert (await gateway.client.post("/workers/nobody/cordon/")).status_code == 404
        assert (await gateway.client.delete(f"/workers/{worker.id}/")).status_code == 202


@pytest.mark.parametrize("path", [*KINDS.values(), "/v1/chat/completions", "/files/*"])
async def test_inference_route_is_the_same_with_a_slash(path: str) -> None:
    """The worker gets the path that it has."""
    kind = "vllm" if path == KINDS["vllm"] else "sglang"
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, relay_path=["/files/*"]) as gateway:
        name = path.replace("*", "a")
        if path not in KINDS.values():
            sim.behave(Reply(body=b"{}"), times=9, path=name)
        body = json.dumps(body_of(kind)).encode()
        for each in (name, name + "/", name + "/?x=1"):
            reply = await gateway.client.post(
                each, content=body, headers={"content-type": "application/json"}
            )
            assert reply.status_code == 200, reply.text
        sent = [one for one in [*generates(sim), *sim.all_requests] if one.target.startswith(name.encode())]
        assert {one.target.decode().partition("?")[0] for one in sent} == {name}
        assert (await gateway.client.post(name + "//", content=body)).status_code == 404
        refused = await gateway.client.get(name + "/")
        assert refused.status_code == (405 if path != "/files/*" else refused.status_code)


async def test_slash_at_the_end_of_the_name_of_a_model_is_a_part_of_it() -> None:
    async with SimServer("sglang", SimConfig(model="/models/m/")) as sim, rig(sim.url) as gateway:
        reply = await gateway.client.get("/v1/models//models/m/")
        assert (reply.status_code, reply.json()["id"]) == (200, "/models/m/")
        assert (await gateway.client.get("/v1/models//models/m")).status_code == 404
