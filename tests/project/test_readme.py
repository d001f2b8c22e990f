"""The examples of the README are real."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gateway.sim import SimConfig, SimServer
from tests.support.gateway import rig, sse

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CALL = re.compile(
    r"^\$ curl -sN? http://127\.0\.0\.1:8000(?P<path>\S+)(?:.*?-d '(?P<body>.*?)')?\n"
    r"(?P<reply>.*?)(?=\n\$|\n```)",
    re.MULTILINE | re.DOTALL,
)
#: Which differ from run to run: times, and how much of the prompt an earlier call has left in the cache.
VOLATILE = {"e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details"}


def lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if key not in VOLATILE}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def test_version_of_python_is_that_of_the_package() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"Python {needed.removeprefix('>=')} or newer" in README


async def test_each_shown_call_gets_the_shown_reply() -> None:
    """But for times; of the stream, which is shown shortened, the ids of the tokens."""
    calls = list(CALL.finditer(README))
    assert [call["path"] for call in calls] == ["/generate", "/inference/v1/generate", "/ready"]
    async with AsyncExitStack() as stack:
        kinds = ("sglang", "sglang", "vllm", "vllm")
        sims = [await stack.enter_async_context(SimServer(kind, SimConfig())) for kind in kinds]
        gateway = await stack.enter_async_context(rig(*(sim.url for sim in sims)))
        for call in calls:
            if call["body"] is None:
                assert (await gateway.client.get(call["path"])).json() == json.loads(call["reply"])
                continue
            json_type = {"content-type": "application/json"}
            reply = await gateway.client.post(call["path"], content=call["body"], headers=json_type)
            if "data: " in call["reply"]:
                shown = re.findall(r'"token_ids":(\[\d+\])', call["reply"])
                got = [choice["token_ids"] for event in sse(reply.content) for choice in event["choices"]]
                assert [json.loads(ids) for ids in shown] == got
            else:
                assert lasting(reply.json()) == lasting(json.loads(call["reply"]))
