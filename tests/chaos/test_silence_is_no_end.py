"""An engine may be silent for any time, unless a limit is configured.

``make silence`` has silences of 130 s, ``make silence SECONDS=650`` of over ten minutes.
"""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.chaos.dialects import ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Call, wants_stream, workers

#: The silence in most runs, in seconds.
SHORT = 3.0


def silent_for(seconds: float) -> Behaviour:
    """Send the head of a requested stream at once, then nothing, then the complete reply."""

    async def behave(call: Call) -> None:
        if wants_stream(call):
            call.stream()
        await asyncio.sleep(seconds)
        if not wants_stream(call):
            return call.reply()
        call.event()
        call.finish()

    return behave


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_reply_after_a_long_silence_is_complete(
    gw: Gateway, route: Route, pytestconfig: pytest.Config
) -> None:
    """Unary and streamed, with the default settings: no byte is added, and each is generated once."""
    seconds = pytestconfig.getoption("--silence")
    async with workers(route.kind, 1, silent_for(seconds or SHORT)) as (worker,):
        await gw.serve(worker)
        async with httpx.AsyncClient(base_url=gw.url, timeout=None, trust_env=False) as client:
            questions = [route.question(), route.question(stream=True)]
            asking = (client.post(route.path, json=question) for question in questions)
            unary, stream = await asyncio.gather(*asking)
        for call in worker.calls:
            reply = stream if wants_stream(call) else unary
            assert reply.status_code == 200
            assert reply.content == b"".join(call.sent)
        assert len(worker.calls) == 2
