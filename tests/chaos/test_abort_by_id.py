"""An abort through the gateway reaches the worker that processes the request, and no other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.chaos.dialects import ENGINES, GENERATE, SGLANG, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Call, Worker, wants_stream, workers
from tests.support.gateway import until
from tests.support.processes import PATIENCE


async def until_aborted(call: Call) -> None:
    """Send two tokens, then wait for an abort."""
    if wants_stream(call):
        call.stream()
        call.event()
    await call.aborted.wait()
    if wants_stream(call):
        return call.finish("abort")
    call.abort_reply()


class RunningRequest:
    """A running request with an id."""

    def __init__(self, gw: Gateway, route: Route, name: str, *, stream: bool = False) -> None:
        question = route.question(stream=stream, **{route.member: name})
        self.reply = asyncio.ensure_future(gw.client.post(route.path, json=question))

    async def ends_aborted(self) -> None:
        """Check that the reply is the engine's own to an aborted request."""
        reply = await asyncio.wait_for(self.reply, PATIENCE)
        assert reply.status_code == 200 and b'"abort"' in reply.content


def abort_of(route: Route, name: str) -> dict[str, Any]:
    return {"rid": name} if route is SGLANG else {"request_ids": [f"generate-tokens-{name}"]}


async def abort(gw: Gateway, route: Route, body: object) -> httpx.Response:
    return await gw.client.post(ENGINES[route.kind].abort_path, json=body)


async def dispatched(gw: Gateway, route: Route, fleet: list[Worker], *names: str) -> list[RunningRequest]:
    """Send a request for each of ``names``, and wait until it is at a worker."""
    await gw.serve(*fleet)
    requests = []
    for count, name in enumerate(names, 1):
        requests.append(RunningRequest(gw, route, name))
        await until(lambda: sum(len(worker.calls) for worker in fleet) == count)  # noqa: B023 - awaited here
    return requests


def holder(fleet: list[Worker], name: str) -> Worker:
    (found,) = [worker for worker in fleet for call in worker.calls if call.id == name]
    return found


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_abort_of_an_id_ends_that_request_and_no_other(gw: Gateway, route: Route) -> None:
    """Its client gets the engine's abort reply; the body of the call reaches its worker only."""
    async with workers(route.kind, 2, until_aborted) as fleet:
        first, second = await dispatched(gw, route, fleet, "A-one", "B-one")
        assert (await abort(gw, route, abort_of(route, "A-one"))).status_code < 300
        await first.ends_aborted()
        assert not second.reply.done()
        aborts = {worker.url: [json.loads(request.body) for request in worker.aborts] for worker in fleet}
        assert aborts == {
            holder(fleet, "A-one").url: [abort_of(route, "A-one")],
            holder(fleet, "B-one").url: [],
        }
        await abort(gw, route, abort_of(route, "B-one"))
        await second.ends_aborted()


async def test_abort_of_all_ends_all_that_runs(gw: Gateway) -> None:
    async with workers("sglang", 2, until_aborted) as fleet:
        requests = await dispatched(gw, SGLANG, fleet, "A-all", "B-all", "C-all")
        assert (await abort(gw, SGLANG, {"abort_all": True})).status_code < 300
        for each in requests:
            await each.ends_aborted()
        await gw.idle()


async def test_abort_of_all_goes_as_it_is_to_every_worker(gw: Gateway) -> None:
    """Also to a worker without requests of this gateway: it may have requests of others."""
    body = b'{ "abort_all" : true, "reason":"new weights" }'
    async with workers("sglang", 2, until_aborted) as fleet:
        (requests,) = await dispatched(gw, SGLANG, fleet, "A-only")
        reply = await gw.client.post(ENGINES["sglang"].abort_path, content=body)
        await requests.ends_aborted()
        for worker in fleet:
            (received,) = [request for request in worker.aborts if request.body == body]
            assert received.header("content-type") == "application/json"
        assert reply.status_code == 200
        assert {row["worker"]: row["error"] for row in reply.json()["results"]} == {
            worker.url: None for worker in fleet
        }
        fleet[0].stop_reading()
        reply = await gw.client.post(ENGINES["sglang"].abort_path, content=body)
        assert reply.status_code == 207
        errors = {row["worker"]: row["error"] for row in reply.json()["results"]}
        assert errors[fleet[0].url] and errors[fleet[1].url] is None


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_abort_of_an_unknown_id_is_no_failure_and_ends_nothing(gw: Gateway, route: Route) -> None:
    async with workers(route.kind, 2, until_aborted) as fleet:
        known = f"known-1-{route.kind}"
        (running,) = await dispatched(gw, route, fleet, known)
        for name in ("unknown", "known", f"{known}0", ""):
            assert (await abort(gw, route, abort_of(route, name))).status_code < 300
        assert not running.reply.done()
        assert [request.body for worker in fleet for request in worker.aborts] == []
        await abort(gw, route, abort_of(route, known))
        await running.ends_aborted()


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_abort_ends_every_request_of_an_id_that_is_used_twice(gw: Gateway, route: Route) -> None:
    """Each has its own id at its engine; the client knows one id."""
    async with workers(route.kind, 2, until_aborted) as fleet:
        await gw.serve(*fleet)
        requests = [RunningRequest(gw, route, "twice"), RunningRequest(gw, route, "twice")]
        await until(lambda: sum(len(worker.calls) for worker in fleet) == 2)
        assert len({call.id for worker in fleet for call in worker.calls}) == 2
        await abort(gw, route, abort_of(route, "twice"))
        for each in requests:
            await each.ends_aborted()


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_aborted_stream_ends_as_the_engine_ends_it(gw: Gateway, route: Route) -> None:
    async with workers(route.kind, 1, until_aborted) as (worker,):
        await gw.serve(worker)
        requests = RunningRequest(gw, route, f"streamed-{route.kind}", stream=True)
        await until(lambda: len(worker.calls) == 1 and worker.calls[0].events == 1)
        await abort(gw, route, abort_of(route, f"streamed-{route.kind}"))
        await requests.ends_aborted()
        assert (await requests.reply).content.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_abort_at_a_worker_that_hangs_is_answered_in_bounded_time(gw: Gateway, route: Route) -> None:
    """The reply is an error or a success within the client's timeout; other aborts do not wait for it."""
    async with workers(route.kind, 2, until_aborted) as fleet:
        names = [f"stuck-{route.kind}", f"moves-{route.kind}"]
        first, second = await dispatched(gw, route, fleet, *names)
        holder(fleet, names[0]).stop_reading()
        slow = asyncio.ensure_future(abort(gw, route, abort_of(route, names[0])))
        await abort(gw, route, abort_of(route, names[1]))
        await second.ends_aborted()
        assert not slow.done()
        assert (await slow).status_code in (200, 502, 504)
        first.reply.cancel()
        await asyncio.wait([first.reply])


async def test_abort_that_cannot_be_read_is_refused(gw: Gateway) -> None:
    for body in (b"", b"{", b"[]", b'{"rid": 7}'):
        reply = await gw.client.post("/abort_request", content=body)
        assert reply.status_code == 400 and reply.json()["error"]
