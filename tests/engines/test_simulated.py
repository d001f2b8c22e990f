"""The simulated engines answer control calls like the real ones: status, headers, and the shape of the body.

Calls that are missing here differ on purpose or need a GPU: docs/simulated-engines.md.
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

#: Headers that belong to one connection, or to one moment.
OWN_HEADERS = {"date", "server", "content-length", "connection", "keep-alive"}
#: A validator's message includes a place in the engine's files, and its own text about JSON.
FILE = re.compile(r'File "[^"]+", line \d+')
NO_JSON = re.compile(r"'loc': \('body', \d+\)(.*?)'ctx': \{'error': [^}]+\}")
#: Real engines have more members in these bodies, about their start or another kind of engine.
PARTLY = re.compile(r"/(get_)?(model|server)_info.*")


@pytest.fixture
async def simulated(request: pytest.FixtureRequest) -> AsyncIterator[SimServer]:
    async with SimServer(request.param, SimConfig(model=MODEL_NAME, max_running=16)) as sim:
        yield sim


@pytest.mark.parametrize(("simulated", "calls"), [("sglang", SGLANG), ("vllm", VLLM)], indirect=["simulated"])
async def test_control_calls_are_answered_alike(
    client: httpx.AsyncClient, engines: Servers, simulated: SimServer, calls: list[Call]
) -> None:
    """In one sequence, because many calls have a meaning only after others."""
    require(simulated.kind)
    differences = []
    for call in calls:
        real, simulation = [
            await answer(client, url, call) for url in (engines[simulated.kind].url, simulated.url)
        ]
        if PARTLY.fullmatch(call.target) and real[0] == 200:
            simulation[2].pop("structural_tag", None)  # only a simulated engine reports its policy
            real = (*real[:2], part(real[2], simulation[2]))
        if real != simulation:
            differences.append(f"{call}\n  real:      {real}\n  simulated: {simulation}")
    assert not differences, "\n".join(differences)


async def answer(
    client: httpx.AsyncClient, url: str, call: Call
) -> tuple[int, dict[str, frozenset[str]], Any]:
    """Return status, headers, and the body without the values that differ between engines."""
    reply = await call.answer(client, url)
    kept = {
        name: frozenset(value.split(", ")) for name, value in reply.headers.items() if name not in OWN_HEADERS
    }
    try:
        body = reply.json()
    except ValueError:
        body = reply.text
    return reply.status_code, kept, shape(body) if reply.status_code == 200 else plain(body)


def shape(body: Any) -> Any:
    """Return keys and types, with the values of flags and short words, which report the result."""
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
    """Return a complete error, without the place in the engine's files."""
    text = FILE.sub("File", json.dumps(body).replace('\\"', '"'))
    return NO_JSON.sub(r"\1", text)


def part(real: Any, simulation: Any) -> Any:
    """Return the part of the real body that the simulated one has as well."""
    if isinstance(real, Mapping) and isinstance(simulation, Mapping):
        return {key: part(real[key], value) for key, value in simulation.items() if key in real}
    if isinstance(real, list) and isinstance(simulation, list):
        return [part(*pair) for pair in zip(real, simulation, strict=False)]
    return real
