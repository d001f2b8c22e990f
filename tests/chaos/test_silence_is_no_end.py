"""An engine may be silent for any time, unless a limit is configured.

``make silence`` has silences of 130 s, ``make silence SECONDS=650`` of over ten minutes.
"""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.chaos.dialects import ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Call

#: The silence in most runs, in seconds.
SHORT = 3.0


def silent_for(seconds: float) -> Behaviour:
    """Send the head of a requested stream at once, then nothing, then the complete reply."""

    async def behave(call: Call) -> None:
        if call.wants_stream:
            call.stream()
        await asyncio.sleep(seconds)
        if not call.wants_stream:
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
    async with (
        gw.fleet(route.kind, 1, silent_for(seconds or SHORT)) as (worker,),
        httpx.AsyncClient(base_url=gw.url, timeout=None, trust_env=False) as client,
    ):
        questions = [route.question(stream=stream) for stream in (False, True)]
        replies = await asyncio.gather(*(client.post(route.path, json=question) for question in questions))
        for call in worker.calls:
            reply = replies[call.wants_stream]
            assert (reply.status_code, reply.content) == (200, b"".join(call.sent))
        assert len(worker.calls) == 2
