"""An abort through the gateway reaches the worker that processes the request, and no other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.chaos.dialects import DONE, GENERATE, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.run.dialects import ABORT_PATHS
from tests.chaos.worker import Call
from tests.support.gateway import until
from tests.support.processes import PATIENCE


async def until_aborted(call: Call) -> None:
    """Send the beginning of a stream, if one is requested, and wait for an abort."""
    if not call.wants_stream:
        await call.aborted.wait()
        return call.reply(reason="abort")
    call.stream(1)
    await call.aborted.wait()
    call.finish("abort")


async def abort(gw: Gateway, route: Route, name: str) -> dict[str, Any]:
    """Send an abort call, which is a success, and return its body."""
    body = {"rid": name} if route.kind == "sglang" else {"request_ids": [f"generate-tokens-{name}"]}
    reply = await gw.client.post(ABORT_PATHS[route.kind], json=body)
    assert reply.status_code < 300
    return body


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_abort_of_an_id_ends_that_request_and_no_other(gw: Gateway, route: Route, stream: bool) -> None:
    """Its client gets the engine's own end; the call reaches its worker only. An abort of an
    unknown id, or of the beginning of a known one, is no failure and reaches nobody.
    """
    names = [f"{letter}-{route.kind}-{stream}" for letter in "AB"]
    async with gw.fleet(route.kind, 2, until_aborted) as fleet:
        replies = []
        for count, name in enumerate(names, 1):
            question = route.question(stream=stream, **{route.member: name})
            replies.append(asyncio.ensure_future(gw.client.post(route.path, json=question)))
            await until(lambda: sum(len(worker.calls) for worker in fleet) == count)  # noqa: B023
        for unknown in ("unknown", names[0][:-1], f"{names[0]}0", ""):
            await abort(gw, route, unknown)
        assert not any(worker.requests_to(ABORT_PATHS[route.kind]) for worker in fleet)
        for name, reply in zip(names, replies, strict=True):
            assert not reply.done()
            sent = await abort(gw, route, name)
            ended = await asyncio.wait_for(reply, PATIENCE)
            assert ended.status_code == 200 and b'"abort"' in ended.content
            assert ended.content.endswith(DONE) is stream
            (holder,) = [worker for worker in fleet if name in [call.id for call in worker.calls]]
            assert [json.loads(call.body) for call in holder.requests_to(ABORT_PATHS[route.kind])] == [sent]


async def test_abort_of_all_ends_all_and_goes_as_it_is_to_every_worker(gw: Gateway) -> None:
    """Also to a worker without requests of this gateway: it may have requests of others."""
    body = b'{ "abort_all" : true, "reason":"new weights" }'
    async with gw.fleet("sglang", 2, until_aborted) as fleet:
        asked = asyncio.ensure_future(gw.ask(GENERATE[0]))
        await until(lambda: any(worker.calls for worker in fleet))
        reply = await gw.client.post("/abort_request", content=body)
        assert (await asyncio.wait_for(asked, PATIENCE)).status_code == 200
        assert {row["worker"]: row["error"] for row in reply.json()["results"]} == {
            worker.url: None for worker in fleet
        }
        for worker in fleet:
            assert body in [call.body for call in worker.requests_to("/abort_request")]
