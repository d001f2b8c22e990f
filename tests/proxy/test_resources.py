"""What a worker created is asked of that worker: responses, sessions, files."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.fleet.states import CordonSource
from gateway.fleet.worker import Worker
from gateway.proxy.resources import TTL, Resources
from gateway.sim import Raw, Reply, SimConfig, SimServer
from gateway.upstream.address import Address
from tests.support.fleet import Fleet, called, fleet
from tests.support.gateway import RawClient, rig

RESPONSES = "/v1/responses"


def test_creators_are_remembered_within_a_number_and_a_time_since_their_last_use() -> None:
    worker, other = (Worker(Address.parse(url)) for url in ("http://a:1", "http://b:1"))
    resources = Resources(limit=2)
    for at, id in enumerate("abc"):
        resources.add(id, worker, worker.incarnation, float(at))
    assert [resources.creator(id, 3.0) for id in "abc"] == [None, worker, worker]
    resources.add("x" * 1000, worker, worker.incarnation, 3.0)
    resources.add("b", other, other.incarnation, 4.0)
    assert (resources.creator("b", 4.0), resources.creator("c", 3.0 + TTL)) == (other, worker)
    assert resources.creator("b", 5.0 + TTL) is None and len(resources) == 1
    worker.incarnation = object()
    assert resources.creator("c", 4.0 + TTL) is None and len(resources) == 0


def created(id: str) -> bytes:
    return json.dumps({"id": id, "object": "it", "usage": None}).encode()


def streamed(id: str) -> bytes:
    event = {"type": "response.created", "response": {"id": id}}
    text = b"event: response.created\ndata: %b\n\n" % json.dumps(event).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n" % (len(text), text)


async def creator_of(of: Fleet, path: str, reply: Reply | Raw) -> SimServer:
    """Create something at ``path``; return the engine that got it."""
    for sim in of.sims:
        sim.behave(reply, path=path)
    client = await RawClient.connect(of.gateway.port)
    client.request(path, b"{}")
    await client.head()
    if isinstance(reply, Raw):  # a stream, which goes on
        await client.reader.readuntil(b"\n\n")
    (creator,) = [sim for sim in of.sims if called(sim, path)]
    client.leave()
    return creator


@pytest.mark.parametrize(
    ("kind", "path", "reply", "method", "later", "body"),
    [
        ("vllm", RESPONSES, Reply(body=created("r")), "GET", "/v1/responses/r", {}),
        ("vllm", RESPONSES, Reply(body=created("r")), "DELETE", "/v1/responses/r", {}),
        ("sglang", RESPONSES, Reply(body=created("r")), "POST", RESPONSES, {"previous_response_id": "r"}),
        ("vllm", RESPONSES, Raw(data=streamed("r"), close=False), "POST", "/v1/responses/r/cancel", {}),
        ("vllm", "/v1/files", Reply(body=created("f-1")), "GET", "/v1/files/f-1/content", {}),
        ("sglang", "/open_session", Reply(body=b'"s"'), "POST", "/generate", {"session_params": {"id": "s"}}),
        ("sglang", "/open_session", Reply(body=b'"s"'), "POST", "/close_session", {"session_id": "s"}),
    ],
)
async def test_later_requests_go_to_the_worker_that_gave_the_id(  # noqa: PLR0913 - the cases
    kind: str, path: str, reply: Reply | Raw, method: str, later: str, body: dict[str, Any]
) -> None:
    files = ("/v1/files", "/v1/files/*")
    async with fleet(kind, kind, kind, relay_path=files, router_mode="round_robin") as of:
        creator = await creator_of(of, path, reply)
        before = {sim.url: len(called(sim, later)) for sim in of.sims}
        for sim in of.sims:
            sim.behave(Reply(body=b"{}"), path=later, times=9)
        for _ in range(6):
            text = {"input_ids": [1], **body} if later == "/generate" else body
            assert (await of.gateway.client.request(method, later, json=text)).status_code == 200
        counts = {sim: len(called(sim, later)) - before[sim.url] for sim in of.sims}
        assert counts == {sim: 6 * (sim is creator) for sim in of.sims}


async def test_id_that_no_worker_gave_and_one_of_a_process_that_ended_may_go_anywhere() -> None:
    async with fleet("vllm", "vllm", router_mode="round_robin") as of:
        creator = await creator_of(of, RESPONSES, Reply(body=created("r")))
        (at,) = [number for number, sim in enumerate(of.sims) if sim is creator]
        of.worker(at).incarnation = object()
        for path in ("/v1/responses/r", "/v1/responses/other"):
            for _ in range(4):
                await of.gateway.client.get(path)
            assert [len(called(sim, path)) for sim in of.sims] == [2, 2]


async def test_what_a_worker_has_that_gets_no_requests_is_unavailable_and_not_missing() -> None:
    async with fleet("vllm", "vllm") as of:
        creator = await creator_of(of, RESPONSES, Reply(body=created("r")))
        (at,) = [number for number, sim in enumerate(of.sims) if sim is creator]
        of.gateway.app.fleet.cordon(of.worker(at), CordonSource.OWNER)
        reply = await of.gateway.client.get("/v1/responses/r")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert not any(called(sim, "/v1/responses/r") for sim in of.sims)


async def test_request_by_id_need_not_name_the_model_of_its_creator() -> None:
    async with (
        SimServer("vllm", SimConfig(model="one")) as one,
        SimServer("vllm", SimConfig(model="two")) as two,
        rig(one.url, two.url) as gateway,
    ):
        two.behave(Reply(body=created("r")), path=RESPONSES)
        await gateway.client.post(RESPONSES, json={"model": "two"})
        for sim in (one, two):
            sim.behave(Reply(body=b"{}"), path="/v1/responses/r")
        assert (await gateway.client.get("/v1/responses/r")).status_code == 200
        assert (await gateway.client.get("/v1/responses/other")).status_code == 400
        assert len(called(two, "/v1/responses/r")) == 1


@pytest.mark.virtual_time
async def test_what_a_worker_has_that_gets_no_requests_is_queued_no_longer_than_the_limit() -> None:
    """Although another worker is usable all the time."""
    async with fleet("vllm", "vllm", queue_seconds=5.0) as of:
        creator = await creator_of(of, RESPONSES, Reply(body=created("r")))
        (at,) = [number for number, sim in enumerate(of.sims) if sim is creator]
        of.gateway.app.fleet.cordon(of.worker(at), CordonSource.OWNER)
        async with asyncio.timeout(30):
            reply = await of.gateway.client.get("/v1/responses/r")
        assert reply.status_code == 503
        assert not any(called(sim, "/v1/responses/r") for sim in of.sims)
