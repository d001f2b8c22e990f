"""The workers API in all its dialects, on a real gateway in front of real (simulated) engines."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.control.workers_rows import WorkerList
from gateway.fleet.states import WorkerState
from gateway.sim import SimConfig, SimServer
from gateway.stores.base import Change, ReadOnlyStore, Reset, StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.record import WorkerRecord
from gateway.wiring.stores import STORES
from tests.control.support import World, client
from tests.support.calls import counted_calls
from tests.support.gateway import RawClient, Rig, eventually, rig, until
from tests.support.processes import free_port
from tests.support.scripted import scripted

GENERATE = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
VLLM, TOKENS = "/inference/v1/generate", {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2}}


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


@contextmanager
def silent_server() -> Iterator[str]:
    """The URL of a server that accepts connections and never replies."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def registered(rigged: Rig, url: str, **members: Any) -> httpx.Response:
    return await rigged.client.post("/workers", json={"url": url, **members})


# -- the list


async def test_worker_is_listed_with_the_documented_members() -> None:
    world = World()
    world.add("http://a:1", version="1.2").in_flight = 2
    async with client(world) as http:
        reply = await http.get("/workers")
    body = WorkerList.model_validate(reply.json())
    assert reply.headers["content-type"] == "application/json"
    assert (body.total, body.workers[0].load, body.workers[0].offers[0].models) == (1, 2, ["m"])


async def test_id_of_a_worker_stays_the_same() -> None:
    world = World()
    world.add("http://a:1")
    world.add("http://b:1", WorkerState.DEAD)
    async with client(world) as http:
        first = (await http.get("/workers")).json()["workers"]
        world.workers.reverse()
        second = (await http.get("/workers")).json()["workers"]
    assert [entry["id"] for entry in first] == [entry["id"] for entry in reversed(second)]
    assert first[0]["id"] != first[1]["id"]


async def test_key_of_a_worker_is_never_shown() -> None:
    world = World()
    worker = world.add("http://a:1")
    worker.authorization = b"Bearer hunter2"
    async with client(world) as http:
        for path in ("/workers", f"/workers/{worker.id}", "/list_workers", "/health", "/ready", "/v1/models"):
            assert "hunter2" not in (await http.get(path)).text


async def test_list_of_urls_leaves_out_dead_workers() -> None:
    """Clients of this list call each URL, and wait a minute for a dead one."""
    world = World()
    for state in WorkerState:
        if state is not WorkerState.GONE:
            world.add(f"http://{state}:1/Path/", state)
    async with client(world) as http:
        urls = (await http.get("/list_workers")).json()["urls"]
    assert urls == [f"http://{name}:1/Path/" for name in ("joining", "ready", "busy", "suspect", "held")]


@pytest.mark.parametrize("spell", [lambda w: w.id, lambda w: w.url, lambda w: quote(w.url, safe="")])
async def test_one_worker_is_found_by_id_and_by_url(spell: Any) -> None:
    world = World()
    worker = world.add("http://a:1/p")
    async with client(world) as http:
        assert (await http.get(f"/workers/{spell(worker)}")).json()["url"] == worker.url
        missing = await http.get("/workers/nobody")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "worker_not_found"


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
    ("how", "status"),
    [
        (lambda http, url: http.post("/workers", json={"url": url, "worker_type": "regular"}), 202),
        (lambda http, url: http.post(f"/add_worker?url={url}"), 200),
        (lambda http, url: http.post("/add_worker", params={"url": url}), 200),
        (lambda http, url: http.post("/add_worker", json={"url": url}), 200),
    ],
    ids=["json", "query", "encoded query", "json of the other"],
)
async def test_registered_worker_is_listed_at_once_and_serves(how: Any, status: int) -> None:
    """With the routes of every router; twice gives the same id; the URL stays as given."""
    async with SimServer("sglang", SimConfig()) as sim, rig() as rigged:
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 503
        first = await how(rigged.client, sim.url)
        assert first.status_code == status
        listed = await row(rigged, sim.url)
        again = await how(rigged.client, sim.url)
        assert again.json() == first.json()
        assert first.json()["worker_id"] == listed["id"]
        assert first.json()["url"] == sim.url
        assert (await rigged.client.get(first.json()["location"])).json()["id"] == listed["id"]
        await becomes(rigged, sim.url, "ready")
        assert len(rigged.app.fleet.workers) == 1
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 200


async def test_record_of_a_worker_is_kept_and_shown() -> None:
    """Unknown members are ignored."""
    async with rig() as rigged:
        record = {"model_id": "m", "worker_type": "prefill", "bootstrap_port": 8998, "priority": -3}
        reply = await registered(
            rigged, "http://127.0.0.1:9", labels={"zone": "a"}, cost=2, extra=[1], **record
        )
        assert reply.status_code == 202
        found = await row(rigged, "http://127.0.0.1:9")
        assert {name: found[name] for name in record} == record
        assert found["labels"] == {"zone": "a"}
        assert (await registered(rigged, "http://127.0.0.1:9", api_key="k")).json()["message"] == (
            "worker registered; api_key was not taken, see --worker-api-key"
        )


async def test_half_of_a_pair_serves_no_request_alone() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig() as rigged:
        await registered(rigged, sim.url, worker_type="decode")
        await until(lambda: "decode half" in rigged.app.fleet.workers[0].reason)
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 503
        await registered(rigged, sim.url)
        await becomes(rigged, sim.url, "ready")


INVALID_REGISTRATIONS: list[tuple[bytes, int, str]] = [
    (b"", 400, "invalid_worker"),
    (b"{", 400, "invalid_json"),
    (b'"http://a:1"', 400, "invalid_json"),
    (b'{"url": 1}', 400, "invalid_worker"),
    (b'{"url": "a:1"}', 400, "invalid_worker"),
    (b'{"url": "http://a:1?x"}', 400, "invalid_worker"),
    (b'{"url": "http://me:secret@a:1"}', 400, "invalid_worker"),
    (b'{"url": "http://a:1", "labels": {"a": 1}}', 400, "invalid_worker"),
    (b'{"url": "http://a:1", "held": "\\ud800"}', 400, "invalid_worker"),
    (b" " * 200_000, 413, "body_too_large"),
]


async def test_invalid_registration_is_refused_with_a_reason() -> None:
    async with rig() as rigged:
        for path in ("/workers", "/add_worker"):
            for content, status, code in INVALID_REGISTRATIONS:
                reply = await rigged.client.post(path, content=content)
                error = reply.json()["error"]
                assert (reply.status_code, error["code"]) == (status, code), content[:50]
                assert set(error) == {"message", "type", "code"}
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
    with silent_server() as hanging:
        async with scripted(redirect) as odd, rig() as rigged:
            urls = [hanging, f"http://127.0.0.1:{free_port()}", "http://nowhere.invalid:1", odd.url]
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
    ("how", "status"),
    [
        (lambda http, worker: http.delete(f"/workers/{worker['id']}"), 202),
        (lambda http, worker: http.delete(f"/workers/{quote(worker['url'], safe='')}"), 202),
        (lambda http, worker: http.delete(f"/workers/{worker['url']}"), 202),
        (lambda http, worker: http.delete(f"/workers/{worker['url']}/"), 202),
        (lambda http, worker: http.post(f"/remove_worker?url={worker['url']}"), 200),
        (lambda http, worker: http.post("/remove_worker", json={"url": worker["url"]}), 200),
        (lambda http, worker: http.post(f"/workers/{worker['id']}/drain"), 202),
    ],
    ids=["id", "encoded url", "url", "url with a slash", "query", "json", "drain"],
)
async def test_removed_worker_is_gone(how: Any, status: int) -> None:
    """With the routes of every router, registered or configured; it can be registered again."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as rigged:
        for _ in range(2):
            reply = await how(rigged.client, await row(rigged, sim.url))
            assert reply.status_code == status
            assert reply.json()["url"] == sim.url
            assert rigged.app.fleet.workers == ()
            assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 503
            await registered(rigged, sim.url)
            await becomes(rigged, sim.url, "ready")


async def test_removal_of_an_unknown_worker() -> None:
    """A 404; a 200 at the route whose clients take anything else for their own failure."""
    async with rig() as rigged:
        for call in (
            rigged.client.delete("/workers/nobody"),
            rigged.client.delete("/workers/http%3A%2F%2Fa%3A1"),
            rigged.client.post("/workers/nobody/drain"),
            rigged.client.post("/workers/nobody/uncordon"),
            rigged.client.post("/workers/nobody/cordon"),
        ):
            reply = await call
            assert reply.status_code == 404
            assert reply.json()["error"]["code"] == "worker_not_found"
        assert (await rigged.client.post("/remove_worker?url=http://a:1")).status_code == 200
        assert (await rigged.client.post("/remove_worker")).status_code == 400


@asynccontextmanager
async def streaming(rigged: Rig, tokens: int = 20) -> AsyncIterator[RawClient]:
    """A running stream of which the first bytes were read."""
    raw = await RawClient.connect(rigged.port)
    body = b'{"input_ids": [1], "stream": true, "sampling_params": {"max_new_tokens": %d}}' % tokens
    raw.request("/generate", body, headers=(("connection", "close"),))
    assert (await raw.head()).startswith(b"HTTP/1.1 200")
    try:
        yield raw
    finally:
        raw.leave()


async def test_removed_worker_finishes_what_runs_on_it() -> None:
    """It drains: no new request, running ones complete, then it is gone."""
    async with SimServer("sglang", SimConfig(token_delay=0.01)) as sim, rig(sim.url) as rigged:
        async with streaming(rigged) as raw:
            worker = rigged.app.fleet.workers[0]
            await rigged.client.post(f"{sim.url}/pause_generation", json={"mode": "in_place"})
            assert (await rigged.client.delete(f"/workers/{worker.id}")).status_code == 202
            assert (await row(rigged, sim.url))["state"] == "draining"
            assert (await rigged.client.get("/list_workers")).json()["urls"] == []
            assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 503
            asked = len(sim.log)
            await rigged.client.post(f"{sim.url}/continue_generation", json={})
            rest = await raw.reader.read()
            assert b"data: [DONE]" in rest
        await until(lambda: rigged.app.fleet.workers == ())
        assert (worker.state, worker.in_flight, worker.pool.idle) == (WorkerState.GONE, 0, 0)
        assert len(sim.log) == asked
        assert sim.url not in (await rigged.client.get("/metrics")).text


async def test_registration_ends_a_drain() -> None:
    """It is the same worker: its running requests are still counted."""
    async with SimServer("sglang", SimConfig(token_delay=0.03)) as sim, rig(sim.url) as rigged:
        async with streaming(rigged, 5000):
            worker = rigged.app.fleet.workers[0]
            await rigged.client.delete(f"/workers/{worker.id}")
            await registered(rigged, sim.url)
            await becomes(rigged, sim.url, "ready")
            assert rigged.app.fleet.workers == (worker,)
            assert (await row(rigged, sim.url))["load"] == 1
        await until(lambda: worker.in_flight == 0)
        assert (await rigged.client.post("/generate", json=GENERATE)).status_code == 200


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
        assert (await rigged.client.post(VLLM, json=TOKENS)).status_code == 503
        where = reply.json()["location"]
        assert (await rigged.client.post(f"{where}/{uncordon}")).status_code == 200
        assert (await row(rigged, sim.url))["state"] == "ready"
        assert (await rigged.client.post(VLLM, json=TOKENS)).status_code == 200
        assert (await rigged.client.post(f"{where}/{cordon}")).status_code == 200
        assert (await rigged.client.post(VLLM, json=TOKENS)).status_code == 503
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


async def test_worker_with_old_weights_can_be_uncordoned() -> None:
    """It stays so while it reports the same weights."""
    async with SimServer("vllm", SimConfig()) as sim:
        async with rig(min_weight_version="5", probe_interval_secs=0.02) as rigged:
            worker_id = (await registered(rigged, sim.url)).json()["worker_id"]
            await becomes(rigged, sim.url, "held")
            await rigged.client.post(f"/workers/{worker_id}/uncordon")
            probed = len(sim.log)
            await until(lambda: len(sim.log) > probed + 3)
            assert (await row(rigged, sim.url))["state"] == "ready"


# -- load


async def test_load_of_the_engine_is_shown() -> None:
    """For each engine: all its requests, from all clients."""
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 500}}
    config = SimConfig(token_delay=0.05, max_model_len=100_000)
    async with SimServer("vllm", config) as vllm, SimServer("sglang", config) as sglang:
        async with rig(vllm.url, sglang.url, probe_interval_secs=0.05) as rigged:
            async with httpx.AsyncClient(trust_env=False) as other, asyncio.TaskGroup() as group:
                calls = [
                    group.create_task(other.post(f"{vllm.url}/inference/v1/generate", json=body)),
                    group.create_task(
                        other.post(
                            f"{sglang.url}/generate",
                            json={"input_ids": [1], "sampling_params": {"max_new_tokens": 500}},
                        )
                    ),
                ]
                for worker in rigged.app.fleet.workers:
                    await until(lambda worker=worker: worker.foreign_requests == 1)  # type: ignore[misc]
                    found = await row(rigged, worker.url)
                    assert found["load"] == 0
                    assert found["reported_load"]["running"] == 1
                for call in calls:
                    call.cancel()
                scraped = (await rigged.client.get("/metrics")).text
                assert f'worker_reported_running{{worker="{vllm.url}"}} 1' in scraped


# -- stores


class Elsewhere(MemoryStore):
    """A store that fails, or is read-only."""

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self._fault = fault
        self.writable = not isinstance(fault, ReadOnlyStore)

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        raise self._fault

    async def delete(self, url: str) -> bool:
        raise self._fault


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
    monkeypatch.setitem(STORES, "memory", lambda settings: Elsewhere(fault))
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


async def test_cordon_is_kept_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another gateway, or the next start, reads it."""
    store = MemoryStore()
    monkeypatch.setitem(STORES, "memory", lambda settings: store)
    watched = store.watch()
    assert await anext(watched) == Reset({})
    async with SimServer("sglang", SimConfig()) as sim, rig() as rigged:
        where = (await registered(rigged, sim.url, priority=1)).json()["location"]
        await rigged.client.post(f"{where}/cordon")
        await rigged.client.post(f"{where}/cordon")
        await rigged.client.post(f"{where}/uncordon")
        await rigged.client.delete(where)
    changes: list[Change] = [change async for change in watched]
    held = [getattr(change, "record", None) and change.record.cordoned for change in changes]  # type: ignore[union-attr]
    assert held == [False, True, False, None]
