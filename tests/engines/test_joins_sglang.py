"""A stream of the engine joins to its unary reply, for every shape of request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest

from gateway.formats.contract import Ids, ReplyHead
from gateway.formats.sglang import FORMAT
from gateway.formats.worker_contract import WorkerInfo
from tests.engines.conftest import Servers, require
from tests.engines.front import PROMPT, Json
from tests.formats.sglang.support import TIMINGS

#: Ids made by the engine, and members that depend on earlier requests.
_BY_CHANCE = TIMINGS | {"id", "cached_tokens", "cached_tokens_details"}
OTHER = [9, 77, 310, 44]


@dataclass(frozen=True)
class Worker:
    """The engine as the gateway knows it before its first probe: the mode follows from the stream itself."""

    info: WorkerInfo | None = None
    prefix: bytes = b""
    authorization: bytes | None = None


def body(sampling: Json, **fields: object) -> Json:
    """Return a greedy request, so that the stream and the unary reply have the same tokens."""
    sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True, **sampling}
    return {"input_ids": PROMPT, "sampling_params": sampling, **fields}


PROMPT_LOGPROBS: Json = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}

CASES: dict[str, Json] = {
    "ids": body({}),
    "one token": body({"max_new_tokens": 1}),
    "no token": body({"max_new_tokens": 0}),
    "many tokens": body({"max_new_tokens": 300}, return_logprob=True, top_logprobs_num=2),
    "text": {"text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 12}},
    "characters over several tokens": body({"max_new_tokens": 60}),
    "logprobs": body({}, return_logprob=True),
    "top logprobs": body({}, return_logprob=True, top_logprobs_num=5),
    "logprobs of ids": body({}, return_logprob=True, token_ids_logprob=[5, 9]),
    "logprobs as text": body({}, return_logprob=True, return_text_in_logprobs=True),
    "prompt logprobs": body({}, **PROMPT_LOGPROBS),
    "flat prompt logprobs": body({}, **PROMPT_LOGPROBS, return_flat_raw_top_logprobs=True),
    "flat prompt logprobs in base64": body(
        {}, **PROMPT_LOGPROBS, return_flat_raw_top_logprobs=True, return_flat_raw_top_logprobs_b64=True
    ),
    "scoring": body({"max_new_tokens": 0}, **PROMPT_LOGPROBS),
    "prompt ids": body({}, return_prompt_token_ids=True),
    "two samples": body({"n": 2}, return_logprob=True),
    "stop token": body({"stop_token_ids": [305], "ignore_eos": False}),
    "stop string": body({"stop": ["w"], "max_new_tokens": 40}),
    "stop string kept": body({"stop": ["w"], "max_new_tokens": 40, "no_stop_trim": True}),
    "end of sequence": body({"logit_bias": {"2": 1000}, "ignore_eos": False}),
    "merged events": body({"stream_interval": 5}, return_logprob=True),
    "batch": body({}, input_ids=[PROMPT, OTHER], return_logprob=True),
    "batch of one": body({}, input_ids=[PROMPT]),
    "batch of two samples": body({"n": 2}, input_ids=[PROMPT, OTHER]),
    "batch of texts": {
        "text": ["Hello", "world"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 6},
    },
    "limit below zero": body({"max_new_tokens": -1}),
    "prompt over the context": body({}, input_ids=[5] * 9000),
    "start of logprobs beyond the prompt": body({}, return_logprob=True, logprob_start_len=50),
}
REFUSED = {"limit below zero", "prompt over the context", "start of logprobs beyond the prompt"}


@pytest.fixture(scope="session", params=["sglang", "sglang-incremental"])
def url(request: pytest.FixtureRequest, engines: Servers) -> str:
    """The engine itself, in both of its stream modes, one after the other."""
    require(request.param)
    return engines[request.param].url


def joined(case: Json, reply: httpx.Response) -> tuple[Any, int]:
    """Return the reply and the status to which the stream joins."""
    request = FORMAT.parse(json.dumps({**case, "stream": True}).encode(), ())
    head = ReplyHead(reply.status_code, [(name.lower(), value) for name, value in reply.headers.raw])
    reader = FORMAT.join(request, Worker(), Ids(("joined",), ("joined",)), head)
    reader.feed(reply.content)
    return json.loads(reader.finish()), reader.facts.error_status or reply.status_code


def repeatable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: repeatable(item) for key, item in value.items() if key not in _BY_CHANCE}
    return [repeatable(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES)
async def test_stream_joins_to_the_unary_reply(client: httpx.AsyncClient, url: str, case: str) -> None:
    """Every key and value, and the status of a refusal."""
    request = CASES[case]
    # The first time the prefix cache is cold. No id is used twice: that of a stream is aborted seconds after
    # its end.
    for _ in range(2):
        unary = await client.post(f"{url}/generate", json={**request, **_named(request)})
        stream = await client.post(f"{url}/generate", json={**request, **_named(request), "stream": True})
    reply, status = joined(request, stream)
    assert status == unary.status_code
    assert repeatable(reply) == repeatable(unary.json())
    assert (status == 200) is (case not in REFUSED)


def _named(request: Json) -> Json:
    return {} if "text" in request else {"rid": uuid4().hex}
