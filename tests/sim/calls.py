"""Requests that many tests send to a simulated engine, in either dialect."""

from __future__ import annotations

import json
from typing import Any

from gateway.sim import SimServer
from tests.sim.client import Answer, Client, Lines, ask

JSON: Lines = (("Content-Type", "application/json"),)
PROMPT = [432, 402, 5]
PATHS = {"sglang": "/generate", "vllm": "/inference/v1/generate"}


def body(kind: str, tokens: int = 4, **extra: Any) -> bytes:
    """Return a greedy request for ``tokens`` tokens; ``sampling`` and all other keys are added."""
    sampling = {"temperature": 0, **extra.pop("sampling", {})}
    if kind == "sglang":
        sampling = {"max_new_tokens": tokens, **sampling}
        return json.dumps({"input_ids": PROMPT, "sampling_params": sampling, **extra}).encode()
    sampling = {"max_tokens": tokens, **sampling}
    return json.dumps({"token_ids": PROMPT, "sampling_params": sampling, **extra}).encode()


async def generate(sim: SimServer, tokens: int = 4, *, headers: Lines = (), **extra: Any) -> Answer:
    """Send a generate call and return its answer."""
    return await ask(sim.port, PATHS[sim.kind], body(sim.kind, tokens, **extra), headers=[*JSON, *headers])


async def begin(sim: SimServer, tokens: int = 4, *, headers: Lines = (), **extra: Any) -> Client:
    """Send a generate call without reading its answer."""
    client = await Client.connect(sim.port)
    client.send(PATHS[sim.kind], body(sim.kind, tokens, **extra), headers=[*JSON, *headers])
    return client


async def control(sim: SimServer, path: str, method: str = "POST", **fields: Any) -> Answer:
    """Send a call to a control route."""
    content = json.dumps(fields).encode() if method == "POST" else None
    return await ask(sim.port, path, content, method=method, headers=JSON)


def ids(answer: Answer) -> list[int]:
    """Return the token ids of a unary answer's first output."""
    reply = answer.json
    reply = reply[0] if isinstance(reply, list) else reply
    found: list[int] = reply["output_ids"] if "output_ids" in reply else reply["choices"][0]["token_ids"]
    return found
