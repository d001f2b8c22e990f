"""The simulated engines answer control calls as the real ones do: status, headers, and the shape of the body.

What has no call here differs on purpose, or is not to be had without a GPU: docs/simulated-engines.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from gateway.sim import SimConfig, SimServer
from scripts.engines.servers import MODEL_NAME
from tests.engines.conftest import Servers, require
from tests.engines.control_calls import SGLANG, VLLM, Call

#: What belongs to one connection, or to one moment.
OWN_HEADERS = {"date", "server", "content-length", "connection", "keep-alive"}
#: What a validator says is shown with the place in the engine's files, and with words about JSON of its own.
FILE = re.compile(r'File "[^"]+", line \d+')
NO_JSON = re.compile(r"'loc': \('body', \d+\)(.*?)'ctx': \{'error': [^}]+\}")
#: Their bodies have more in a real engine: of what it was started with, or of another engine's kind.
PARTLY = re.compile(r"/(get_)?(model|server)_info.*")


@pytest.fixture
async def simulated(request: pytest.FixtureRequest) -> AsyncIterator[SimServer]:
    async with SimServer(request.param, SimConfig(model=MODEL_NAME, max_running=16)) as sim:
        yield sim


@pytest.mark.parametrize(("simulated", "calls"), [("sglang", SGLANG), ("vllm", VLLM)], indirect=["simulated"])
async def test_control_calls_are_answered_alike(
    client: httpx.AsyncClient, engines: Servers, simulated: SimServer, calls: list[Call]
) -> None:
    """In one long sitting, as many calls mean something only after others."""
    require(simulated.kind)
    differences = []
    for call in calls:
        real, simulation = [
            await answer(client, url, call) for url in (engines[simulated.kind].url, simulated.url)
        ]
        if PARTLY.fullmatch(call.target) and real[0] == 200:
            real = (*real[:2], part(real[2], simulation[2]))
        if real != simulation:
            differences.append(f"{call}\n  real:      {real}\n  simulated: {simulation}")
    assert not differences, "\n".join(differences)


async def answer(
    client: httpx.AsyncClient, url: str, call: Call
) -> tuple[int, dict[str, frozenset[str]], Any]:
    """Status, headers, and the body without what no two engines have in common."""
    content = None if call.body is None else call.body.encode()
    headers = {"connection": "close"}  # an engine drops a connection on which something failed
    if content is not None and call.content_type is not None:
        headers["content-type"] = call.content_type
    reply = await client.request(call.method, url + call.target, content=content, headers=headers)
    kept = {
        name: frozenset(value.split(", ")) for name, value in reply.headers.items() if name not in OWN_HEADERS
    }
    try:
        body = reply.json()
    except ValueError:
        body = reply.text
    return reply.status_code, kept, shape(body) if reply.status_code == 200 else plain(body)


def shape(body: Any) -> Any:
    """Keys and types; the values of flags and short words, which tell what happened, as they are."""
    if isinstance(body, dict):
        return {key: value if key in WORDS else shape(value) for key, value in body.items()}
    if isinstance(body, list):
        return [shape(each) for each in body]
    return type(body).__name__ if isinstance(body, str | int | float) else body


WORDS = frozenset(
    {"status", "success", "message", "is_paused", "is_sleeping", "level", "tags", "new_version", "aborted"}
    | {"weight_version", "served_model_name", "world_size", "num_paused_requests"}
)


def plain(body: Any) -> Any:
    """An error, whole, but for where in its files an engine found it."""
    text = FILE.sub("File", json.dumps(body).replace('\\"', '"'))
    return NO_JSON.sub(r"\1", text)


def part(real: Any, simulation: Any) -> Any:
    """Of the real body what the simulated one has as well."""
    if isinstance(real, Mapping) and isinstance(simulation, Mapping):
        return {key: part(real[key], value) for key, value in simulation.items() if key in real}
    if isinstance(real, list) and isinstance(simulation, list):
        return [part(*pair) for pair in zip(real, simulation, strict=False)]
    return real
