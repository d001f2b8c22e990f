"""A stream of the engine joins to its unary reply, for every shape of request."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx
import pytest

from gateway.formats.contract import Ids, ReplyHead
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.upstream import GENERATE_PATH
from gateway.formats.worker_contract import WorkerInfo
from tests.engines.front import PROMPT, Json
from tests.formats.vllm.support import VOLATILE


@dataclass(frozen=True)
class Worker:
    """The engine as the gateway knows it."""

    info: WorkerInfo = WorkerInfo("vllm", "vllm", usable=True, models=("tiny",))
    prefix: bytes = b""
    authorization: bytes | None = None


def body(sampling: Json, **fields: object) -> Json:
    """Return a request, greedy unless a case overrides it, so that the stream and the unary reply have the
    same tokens.
    """
    sampling = {"temperature": 0, "max_tokens": 12, **sampling}
    return {"request_id": "joined", "token_ids": PROMPT, "sampling_params": sampling, **fields}


USAGE = {"include_usage": True}
SEEDED = {"temperature": 1, "seed": 7}

CASES: dict[str, Json] = {
    "ids": body({}),
    "one token": body({"max_tokens": 1}),
    "many tokens": body({"max_tokens": 300, "ignore_eos": True}),
    "base model by name": body({}, model="tiny"),
    "usage": body({}, stream_options=USAGE),
    "usage all along": body({}, stream_options={**USAGE, "continuous_usage_stats": True}),
    "logprobs of the sampled": body({"logprobs": 0}),
    "top logprobs": body({"logprobs": 5}),
    "logprobs of ids": body({"logprob_token_ids": [1, 2, 78]}),
    "sampled": body({**SEEDED, "logprobs": 2}),
    "two samples": body({**SEEDED, "n": 2, "logprobs": 1}),
    "four samples with usage": body({**SEEDED, "n": 4}, stream_options=USAGE),
    "stop token": body({"stop_token_ids": [305]}),
    "stop string": body({"stop": ["1"]}),
    "end of sequence": body({"allowed_token_ids": [2]}),
    "prompt ids": body({}, return_token_ids=True),
    "text": body({}, output_mode="text"),
    "text with logprobs": body({"logprobs": 2}, output_mode="text"),
    "characters over several tokens": body({"max_tokens": 60}, output_mode="text"),
    "merged events": body({"stream_interval": 5, "logprobs": 1}),
    "out of the vocabulary": body({}, token_ids=[1, 512]),
    "prompt over the context": body({}, token_ids=[5] * 9000),
}


def joined(case: Json, reply: httpx.Response) -> tuple[bytes, int]:
    """Return the body and the status to which the stream joins."""
    request = FORMAT.parse(json.dumps({**case, "stream": True}).encode(), ())
    head = ReplyHead(reply.status_code, [(name.lower(), value) for name, value in reply.headers.raw])
    reader = FORMAT.join(request, Worker(), Ids(("joined",), ("joined",)), head)
    reader.feed(reply.content)
    return reader.finish(), reader.facts.error_status or reply.status_code


def repeatable(reply: bytes) -> Json:
    found: Json = json.loads(reply)
    return {key: value for key, value in found.items() if key not in VOLATILE}


@pytest.mark.parametrize("case", CASES)
async def test_stream_joins_to_the_unary_reply(client: httpx.AsyncClient, vllm_url: str, case: str) -> None:
    """Every key, its order and its spelling, and the status of a refusal."""
    request = CASES[case]
    complete = {key: value for key, value in request.items() if key != "stream_options"}
    url = vllm_url + GENERATE_PATH
    for _ in range(2):  # The first time, the engine's prefix cache is cold.
        unary = await client.post(url, json=complete)
        stream = await client.post(url, json={**request, "stream": True})
    out, status = joined(request, stream)
    assert status == unary.status_code
    assert json.dumps(repeatable(out)) == json.dumps(repeatable(unary.content))
    assert (status == 200) is (case not in ("out of the vocabulary", "prompt over the context"))
