"""The workers API in all its dialects, on a real gateway in front of real (simulated) engines."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import httpx
import pytest

from gateway.control.workers_rows import CardEntry
from gateway.fleet.states import WorkerState
from gateway.sim import SimConfig, SimServer
from gateway.stores.base import Change, ReadOnlyStore, Reset, StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.record import WorkerRecord
from gateway.wiring.stores import STORES
from tests.control.support import GENERATE, World, client
from tests.support.calls import counted_calls
from tests.support.fleet import fleet
from tests.support.gateway import RawClient, Rig, eventually, rig, until
from tests.support.generate import KINDS, body_of
from tests.support.processes import free_port
from tests.support.scripted import scripted


async def row(rigged: Rig, url: str) -> dict[str, Any]:
    """The entry of ``url`` in the list."""
    listed = (await rigged.client.get("/workers")).json()["workers"]
    (found,) = [one for one in listed if one["url"] == url]
    return dict(found)


async def becomes(rigged: Rig, url: str, state: str) -> None:
    """Wait until the list shows ``url`` in that state."""

    async def shown() -> bool:
        return bool((await row(rigged, url))["state"] == state)

    await eventually(shown)


async def registered(rigged: Rig, url: str, **members: Any) -> httpx.Response:
    return await rigged.client.post("/workers", json={"url": url, **members})


# -- the list


async def test_list_of_urls_leaves_out_dead_workers() -> None:
    """Clients of this list call each URL, and wait a minute for a dead one."""
    world = World()
    for state in WorkerState:
        if state is not WorkerState.GONE:
            world.add(f"http://{state}:1/Path/", state)
    async with client(world) as http:
        urls = (await http.get("/list_workers")).json()["urls"]
    assert urls == [f"http://{name}:1/Path/" for name in ("joining", "ready", "busy", "suspect", "held")]


# -- registration


class Unwatched(MemoryStore):
    """The store does not report its content, as if another gateway had just written it."""

    async def watch(self) -> AsyncGenerator[Change, None]:
        yield Reset({})
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("method", "path", "status", "after"),
    [
        ("DELETE", "/workers/http%3A%2F%2Fa%3A1", 202, 404),
        ("DELETE", "/workers/http://a:1", 202, 404),
        ("POST", "/workers/http://a:1/drain", 202, 404),
        ("POST", "/remove_worker?url=http://a:1", 200, 200),
    ],
)
async def test_worker_that_another_gateway_has_just_registered_is_removed(
    method: str, path: str, status: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its URL. Otherwise it would join when its record arrives."""
    store = Unwatched()
    await store.put(WorkerRecord("http://a:1"))
    monkeypatch.setitem(STORES, "memory", lambda settings: store)
    async with rig() as rigged:
        reply = await rigged.client.request(method, path)
        assert reply.status_code == status
        assert reply.json()["message"] == "worker removed"
        assert not await store.delete("http://a:1")
        again = await rigged.client.request(method, path)
        assert again.status_code == after
        assert "there is no worker" in again.text or "there is no such worker" in again.text


@pytest.mark.parametrize(
    ("path", "call", "status"),
    [
        ("/workers", {"json": {"url": "URL", "worker_type": "regular"}}, 202),
        ("/add_worker?url=URL", {}, 200),
        ("/add_worker", {"params": {"url": "URL"}}, 200),
        ("/add_worker", {"json": {"url": "URL"}}, 200),
    ],
    ids=["json", "query", "encoded query", "json of the other"],
)
async def test_registered_worker_is_listed_at_once_and_serves(
    path: str, call: dict[str, dict[str, str]], status: int
) -> None:
    """With the routes of every router; twice gives the same id; the URL stays as given."""
    async with SimServer("sglang", SimConfig()) as sim, rig() as rigged:
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 503
        given: dict[str, Any] = {how: {**members, "url": sim.url} for how, members in call.items()}
        first, again = [await rigged.client.post(path.replace("URL", sim.url), **given) for _ in range(2)]
        listed = await row(rigged, sim.url)
        assert (first.status_code, again.json()) == (status, first.json())
        assert (first.json()["worker_id"], first.json()["url"]) == (listed["id"], sim.url)
        assert (await rigged.client.get(first.json()["location"])).json()["id"] == listed["id"]
        await becomes(rigged, sim.url, "ready")
        assert len(rigged.app.fleet.workers) == 1
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 200


async def test_card_of_a_worker_is_kept_and_shown_with_the_source_of_each_value() -> None:
    budget = {"combined_limit": 64, "reject_prompt_overflow": True, "reject_total_overflow": False}
    given = {"context_length": 64, "token_budget": budget, "structural_tag": {}, "tool_parser": "hermes"}
    async with SimServer("vllm", SimConfig(model="m")) as sim, rig() as rigged:
        reply = await registered(rigged, sim.url, **given, worker_type="regular")
        assert reply.json()["message"] == "worker registered"
        await becomes(rigged, sim.url, "ready")
        listed = await row(rigged, sim.url)
        shown = (await rigged.client.get(f"/workers/{listed['id']}/card")).json()
        assert CardEntry.model_validate(shown).card == listed["card"]
        assert (shown["url"], shown["version"]) == (sim.url, listed["card_version"])
        card, sources = shown["card"], shown["sources"]
        assert (card["context_length"], card["tool_call_parser"]) == (64, "hermes")
        assert (card["structural_tag"]["scope"], card["structural_tag_mode"]) == ("auto", "on")
        free = {"vllm_inference_v1_generate": True, "token_budget": budget}
        assert free.items() <= card["runtime_data"].items()
        assert (sources["token_budget"], sources["capabilities"]) == ("registration", "engine")
        of_model = await rigged.client.get(f"/workers/{listed['id']}/card", params={"model": "m"})
        assert of_model.json() == {**shown, "model": "m"}
        missing = await rigged.client.get("/workers/nobody/card")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "worker_not_found")


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ({"json": {"token_budget": {"combined_limit": "1"}}}, "token_budget: combined_limit: must be"),
        ({"json": {"structural_tag": {"scope": "Always"}}}, "structural_tag: scope must be one of"),
        ({"params": {"context_length": "x"}}, "context_length must be an integer"),
        ({"params": {"token_budget": "{}"}}, "token_budget: must be an object"),
    ],
)
async def test_invalid_member_of_a_card_is_refused_by_its_name(call: dict[str, Any], word: str) -> None:
    async with rig() as rigged:
        json = {"url": "http://127.0.0.1:9", **call.get("json", {})}
        reply = await rigged.client.post("/workers", json=json, params=call.get("params"))
        assert reply.status_code == 400 and word in reply.json()["error"]["message"]
        assert not rigged.app.fleet.workers


async def test_name_that_utf8_cannot_encode_is_no_error_of_the_gateway() -> None:
    async with rig() as rigged:
        reply = await rigged.client.post("/workers", content=b'{"url": "http://127.0.0.1:9", "\\ud800": 1}')
        assert (reply.status_code, reply.json()["message"]) == (202, "worker registered; not taken: \ud800")


async def test_record_of_a_worker_is_kept_and_shown() -> None:
    async with rig() as rigged:
        record = {"model_id": "m", "bootstrap_port": 8998, "priority": -3, "labels": {"zone": "a"}}
        reply = await registered(rigged, "http://127.0.0.1:9", extra=[1], api_key="k", **record)
        assert reply.json()["message"] == (
            "worker registered; api_key was not taken, see --worker-api-key; not taken: extra"
        )
        found = await row(rigged, "http://127.0.0.1:9")
        assert {name: found[name] for name in record} == record


@pytest.mark.parametrize("role", ["prefill", "decode", "encode"])
async def test_role_that_cannot_be_served_is_refused_with_the_reason(role: str) -> None:
    async with rig() as rigged:
        for path in ("/workers", "/add_worker"):
            body = {"url": "http://127.0.0.1:9", "worker_type": role}
            reply = await rigged.client.post(path, json=body)
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (422, "role_not_served")
            assert f"worker_type {role} cannot be served yet" in error["message"]
        assert not rigged.app.fleet.workers


async def test_half_of_a_pair_in_a_store_serves_no_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setitem(STORES, "memory", lambda settings: store)
    async with SimServer("sglang", SimConfig()) as sim, rig() as rigged:
        await store.put(WorkerRecord(sim.url, worker_type="decode"))
        await until(lambda: any("decode half" in each.reason for each in rigged.app.fleet.workers))
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 503
        shown = (await rigged.client.get(f"/workers/{sim.url}/card")).json()
        assert (shown["card"]["worker_type"], shown["sources"]["worker_type"]) == ("decode", "store")
        await registered(rigged, sim.url)
        await becomes(rigged, sim.url, "ready")


async def test_invalid_registration_is_refused_with_a_reason() -> None:
    async with rig() as rigged:
        for path in ("/workers", "/add_worker"):
            for content, status, code in (
                (b"", 400, "invalid_worker"),
                (b"{", 400, "invalid_json"),
                (b'{"url": "http://me:secret@a:1"}', 400, "invalid_worker"),
                (b" " * 200_000, 413, "body_too_large"),
            ):
                reply = await rigged.client.post(path, content=content)
                error = reply.json()["error"]
                assert (reply.status_code, error["code"]) == (status, code), content[:50]
                assert error["message"] and "secret" not in reply.text
        assert rigged.app.fleet.workers == ()


async def test_only_allowed_urls_are_registered() -> None:
    allowed = ["http://127.0.0.1:9", "http://127.9.9.9:30000/p", "http://gpu-7.pool:8000"]
    others = ["https://127.0.0.1:9", "http://10.0.0.1:9", "http://localhost:9", "http://gpu-7.pool:8001"]
    async with rig(allow_worker_url=("http://127.0.0.0/8", "gpu-*.pool:8000")) as rigged:
        for url in [*others, "http://gpu-7.pool.evil:8000"]:
            reply = await registered(rigged, url)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "url_not_allowed"), url
        for url in allowed:
            assert (await registered(rigged, url)).status_code == 202, url
        assert [worker.url for worker in rigged.app.fleet.workers] == allowed


async def test_calls_do_not_wait_for_any_worker() -> None:
    """Registration and removal of a worker that hangs, refuses, has no address, or is no engine."""
    redirect = b"HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    async with scripted(b"", drip=b"") as hanging, scripted(redirect) as odd, rig() as rigged:
        urls = [hanging.url, f"http://127.0.0.1:{free_port()}", "http://nowhere.invalid:1", odd.url]
        async with asyncio.timeout(4):  # a second each would be too much already
            for url in urls:
                assert (await registered(rigged, url)).status_code == 202
            assert [(await row(rigged, url))["state"] for url in urls] == ["joining"] * 4
            await until(lambda: "does not speak" in rigged.app.fleet.workers[3].reason)
            for url in urls:
                assert (await rigged.client.delete(f"/workers/{url}")).status_code == 202
        assert rigged.app.fleet.workers == ()


@pytest.mark.virtual_time
async def test_512_workers_are_registered_and_ready_within_5_seconds() -> None:
    """One engine under many addresses is many workers.

    Seconds of waiting are those of virtual time; the work, that of client and engine included, is counted.
    """
    config = SimConfig(host="0.0.0.0", log_limit=1)
    async with SimServer("vllm", config) as sim, rig(probe_interval_secs=5) as rigged:
        port = sim.url.rsplit(":", 1)[1]
        began = time.monotonic()
        with counted_calls() as counter:
            for number in range(512):
                url = f"http://127.1.{number // 250}.{number % 250 + 1}:{port}"
                assert (await registered(rigged, url, format="vllm")).status_code == 202
            await until(lambda: all(worker.usable for worker in rigged.app.fleet.workers), 50)
        assert time.monotonic() - began < 5
        assert counter.calls < 512 * 18_000
        listed = (await rigged.client.get("/workers")).json()
        assert (listed["total"], len({one["id"] for one in listed["workers"]})) == (512, 512)


# -- removal


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/workers/{id}", 202),
        ("DELETE", "/workers/{encoded}", 202),
        ("DELETE", "/workers/{url}", 202),
        ("DELETE", "/workers/{url}/", 202),
        ("POST", "/remove_worker?url={url}", 200),
        ("POST", "/workers/{id}/drain", 202),
    ],
)
async def test_removed_worker_is_gone(method: str, path: str, status: int) -> None:
    """With the routes of every router, registered or configured; it can be registered again."""
    async with fleet("sglang") as of:
        worker, http = of.worker(), of.gateway.client
        target = path.format(id=worker.id, url=worker.url, encoded=quote(worker.url, safe=""))
        for _ in range(2):
            reply = await http.request(method, target)
            assert (reply.status_code, reply.json()["url"]) == (status, worker.url)
            assert of.gateway.app.fleet.workers == ()
            assert (await of.post("/generate", json=GENERATE)).status_code == 503
            await registered(of.gateway, worker.url)
            await becomes(of.gateway, worker.url, "ready")


async def test_every_spelling_of_a_url_is_one_worker_in_every_call() -> None:
    """Registered again, listed, named by a control call, cordoned, removed; the first spelling is shown."""
    async with fleet("sglang") as of:
        http, worker, port = of.gateway.client, of.worker(), of.worker().url.rpartition(":")[2]
        mapped, short, slash = (
            f"http://[::ffff:127.0.0.1]:{port}",
            f"HTTP://127.1:0{port}",
            worker.url + "/",
        )
        for url in (mapped, short, slash, f"http://2130706433:{port}/x/.."):
            assert (await http.post("/workers", json={"url": url})).json()["url"] == worker.url
        assert (await http.get(f"/workers/{quote(mapped, safe='')}")).json()["id"] == worker.id
        assert (await http.post(f"/flush_cache?worker={quote(short, safe='')}")).status_code == 200
        assert (await http.post(f"/workers/{short}/cordon")).json()["worker_id"] == worker.id
        assert worker.state is WorkerState.CORDONED
        removed = await http.post("/remove_worker", json={"url": mapped})
        assert removed.json()["url"] == worker.url
        assert of.gateway.app.fleet.workers == ()


@pytest.mark.parametrize("call", ["DELETE /workers/{}", "DELETE /workers/{}/", "POST /remove_worker?url={}"])
@pytest.mark.parametrize(
    "spelling",
    [
        "http://a.invalid/x",
        "HTTP://A.Invalid/x",
        "http://a.invalid:80/x",
        "http://a.invalid:080/x/",
        "http://a.invalid/./x",
        "http://a.invalid/y/../x",
        "http://a.invalid/x//",
    ],
)
async def test_worker_is_found_and_removed_by_any_spelling_of_its_url(call: str, spelling: str) -> None:
    method, target = call.split()
    async with rig() as rigged:
        await registered(rigged, "http://A.invalid:80/y/../x/")
        key = quote(spelling, safe="")
        assert (await rigged.client.get(f"/workers/{key}")).json()["url"] == "http://A.invalid:80/y/../x/"
        removed = await rigged.client.request(method, target.format(key))
        assert (removed.is_success, removed.json()["url"]) == (True, "http://A.invalid:80/y/../x/")
        assert rigged.app.fleet.workers == ()


async def test_call_for_an_unknown_worker() -> None:
    """A 404; a 200 at the route whose clients take anything else for their own failure."""
    async with rig() as rigged:
        for method, path in (
            ("GET", "nobody"),
            ("DELETE", "nobody"),
            ("DELETE", "http%3A%2F%2Fa%3A1"),
            ("POST", "nobody/drain"),
            ("POST", "nobody/uncordon"),
            ("POST", "nobody/cordon"),
        ):
            reply = await rigged.client.request(method, f"/workers/{path}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "worker_not_found")
        assert (await rigged.client.post("/remove_worker?url=http://a:1")).status_code == 200
        assert (await rigged.client.post("/remove_worker")).status_code == 400


async def test_removed_worker_finishes_what_runs_on_it() -> None:
    """It drains: no new request, running ones complete, then it is gone."""
    async with SimServer("sglang", SimConfig(token_delay=0.01)) as sim, rig(sim.url) as rigged:
        client = await RawClient.connect(rigged.port)
        body = json.dumps(body_of("sglang", 20, True)).encode()
        client.request("/generate", body, headers=(("connection", "close"),))
        assert (await client.head()).startswith(b"HTTP/1.1 200")
        worker = rigged.app.fleet.workers[0]
        await rigged.client.post(f"{sim.url}/pause_generation", json={"mode": "in_place"})
        assert (await rigged.client.delete(f"/workers/{worker.id}")).status_code == 202
        assert (await row(rigged, sim.url))["state"] == "draining"
        assert (await rigged.client.get("/list_workers")).json()["urls"] == []
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 503
        asked = len(sim.log)
        await rigged.client.post(f"{sim.url}/continue_generation", json={})
        assert b"data: [DONE]" in await client.reader.read()
        client.leave()
        await until(lambda: rigged.app.fleet.workers == ())
        assert (worker.state, worker.in_flight, worker.pool.idle) == (WorkerState.GONE, 0, 0)
        assert len(sim.log) == asked
        assert sim.url not in (await rigged.client.get("/metrics")).text


async def test_registration_makes_a_dead_worker_be_probed_at_once() -> None:
    async with rig(probe_interval_secs=1000) as rigged:
        async with SimServer("sglang", SimConfig()) as sim:
            await registered(rigged, sim.url)
            await becomes(rigged, sim.url, "ready")
        rigged.app.fleet.workers[0].pool.close()
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code in (502, 503)
        await becomes(rigged, sim.url, "dead")
        async with SimServer("sglang", SimConfig(port=int(sim.url.rsplit(":", 1)[1]))):
            reply = await registered(rigged, sim.url)
            assert reply.status_code == 202
            await becomes(rigged, sim.url, "ready")


# -- cordons


@pytest.mark.parametrize(("cordon", "uncordon"), [("cordon", "uncordon"), ("hold", "open")])
async def test_cordoned_worker_serves_once_it_is_uncordoned(cordon: str, uncordon: str) -> None:
    """Good probes do not change that, and it can be cordoned again. The older names do the same."""
    async with SimServer("vllm", SimConfig()) as sim, rig(probe_interval_secs=0.02) as rigged:
        reply = await registered(rigged, sim.url, held=True)
        await becomes(rigged, sim.url, "held")
        probed = len(sim.log)
        await until(lambda: len(sim.log) > probed + 3)  # each of its descriptions asks for nothing
        found = await row(rigged, sim.url)
        assert (found["state"], found["is_healthy"]) == ("held", False)
        assert found["cordons"] == found["holds"] == ["owner"]
        assert (await rigged.client.post(KINDS["vllm"], json=body_of("vllm"))).status_code == 503
        where = reply.json()["location"]
        assert (await rigged.client.post(f"{where}/{uncordon}")).status_code == 200
        assert (await row(rigged, sim.url))["state"] == "ready"
        assert (await rigged.client.post(KINDS["vllm"], json=body_of("vllm"))).status_code == 200
        assert (await rigged.client.post(f"{where}/{cordon}")).status_code == 200
        assert (await rigged.client.post(KINDS["vllm"], json=body_of("vllm"))).status_code == 503
        assert (await row(rigged, sim.url))["reason"] == "cordoned by its owner"
        await registered(rigged, sim.url)  # the last word of its owner counts
        assert (await row(rigged, sim.url))["state"] == "ready"


async def test_worker_is_cordoned_until_its_weights_are_new_enough() -> None:
    """A worker that was registered as held is uncordoned with it."""
    async with SimServer("sglang", SimConfig()) as sim, rig(min_weight_version="5") as rigged:
        await registered(rigged, sim.url, held=True)
        await becomes(rigged, sim.url, "held")
        assert "weight version is default, and 5 is wanted" in (await row(rigged, sim.url))["reason"]
        async with httpx.AsyncClient(base_url=sim.url, trust_env=False) as engine:
            await engine.post("/update_weight_version", json={"new_version": "4"})
            await until(lambda: "is 4" in rigged.app.fleet.workers[0].reason)
            await engine.post("/update_weight_version", json={"new_version": "12"})
        await becomes(rigged, sim.url, "ready")
        assert (await row(rigged, sim.url))["weight_version"] == "12"


# -- stores


@pytest.mark.parametrize(
    ("fault", "status", "code", "header"),
    [
        (StoreUnavailable("etcd does not answer"), 503, "store_unavailable", "retry-after"),
        (ReadOnlyStore("the list is Kubernetes' own"), 405, "read_only_store", "allow"),
    ],
)
async def test_change_that_the_store_refuses(
    fault: Exception, status: int, code: str, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets an error, the fleet is unchanged, and a worker of a read-only store can be cordoned."""

    async def refuse(*_: object, **__: object) -> bool:
        raise fault

    monkeypatch.setattr(MemoryStore, "put", refuse)
    monkeypatch.setattr(MemoryStore, "delete", refuse)
    monkeypatch.setattr(MemoryStore, "writable", not isinstance(fault, ReadOnlyStore))
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as rigged:
        for call in (
            registered(rigged, "http://a:1"),
            rigged.client.delete(f"/workers/{sim.url}"),
            rigged.client.post(f"/remove_worker?url={sim.url}"),
        ):
            reply = await call
            assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
            assert header in reply.headers
        assert [worker.url for worker in rigged.app.fleet.workers] == [sim.url]
        assert (await rigged.client.post(f"/workers/{sim.url}/cordon")).status_code == 200
        assert (await row(rigged, sim.url))["state"] == "held"
        assert (await rigged.client.post(f"/workers/{sim.url}/uncordon")).status_code == 200


async def test_full_disk_of_the_file_store_is_reported_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To the client and in the log; requests are served, and the same call succeeds once there is room."""
    file = tmp_path / "workers.json"
    async with SimServer("sglang", SimConfig()) as sim:
        async with rig(discovery_backend="file", discovery_file=str(file)) as rigged:
            assert (await registered(rigged, sim.url)).is_success
            await becomes(rigged, sim.url, "ready")
            before, words = file.read_bytes(), f"{file} was not changed: [Errno 28] No space left on device"
            with monkeypatch.context() as full:
                full.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
                for call in (registered(rigged, "http://a:1"), rigged.client.delete(f"/workers/{sim.url}")):
                    reply = await call
                    error = reply.json()["error"]
                    assert (reply.status_code, error["code"]) == (503, "store_unavailable")
                    assert error["message"] == words
            logged = [line for line in caplog.messages if words in line]
            assert logged == [f"a change of the workers failed: {words}"] * 2
            assert file.read_bytes() == before
            assert sorted(os.listdir(tmp_path)) == [file.name, f"{file.name}.lock"]
            assert [worker.url for worker in rigged.app.fleet.workers] == [sim.url]
            assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 200
            assert (await registered(rigged, "http://a:1")).is_success
