"""Unknown fields and headers of a request reach the worker unchanged."""

from __future__ import annotations

import json

import pytest

from gateway.sim import Arrival
from tests.chaos.dialects import ROUTES, SGLANG, VLLM, Route, named
from tests.chaos.gateways import Gateway

#: Members with unusual spelling: two blanks after a colon, a member twice, large and small numbers.
ODD = (
    b'"zzz_unknown": {"deep": [1, {"er": null}]}, "big": 9007199254740993, "tiny": 1e-7, "blanks":  "two"'
    b', "bigger": 123456789012345678901234567890, "twice": 1, "twice": 2, "esc": "caf\\u00e9\\/", '
)
SGLANG_BODY = (
    b"{" + ODD + b'"return_routed_experts": true, "routed_experts_start_len": 7, "return_indexer_topk": false'
    b', "lora_path": "adapters/a", "custom_logit_processor": "x", "image_data": null'
    b', "logprob_start_len": null, "routed_dp_rank": 1'
    b', "sampling_params": {"custom_params": {"return_top_p_token_ids": true}'
    b', "max_new_tokens": 3, "temperature": 1e-7}, "input_ids": [3, 2, 1]%b}'
)
VLLM_BODY = (
    b"{" + ODD + b'"cache_salt": "salt", "priority": -3, "features": null, "sampling_params":'
    b' {"routed_experts_prompt_start": 5, "output_kind": 2, "max_tokens": 3}, "token_ids": [3, 2, 1]%b}'
)
CHAT_BODY = (
    b"{"
    + ODD
    + b'"messages": [{"role": "user", "content": "hi"}], "model": "tiny", "chat_template_kwargs": {}%b}'
)
BODIES = {"/generate": SGLANG_BODY, "/inference/v1/generate": VLLM_BODY, "/v1/chat/completions": CHAT_BODY}
HEADERS = {
    "X-SMG-Routing-Key": "group-7",
    "X-Session-ID": "session-7",
    "X-data-parallel-rank": "1",
    "Authorization": "Bearer of-the-client",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "X-Nobody-Knows": "any, value; a=b",
}


async def arrived(gw: Gateway, route: Route, body: bytes, method: str = "POST") -> Arrival:
    """Send ``body``; return the request that the worker received, with the headers that were sent."""
    async with gw.fleet(route.kind, 1) as (worker,):
        headers = {"content-type": "application/json", **HEADERS}
        reply = await gw.client.request(method, route.path, content=body, headers=headers)
        assert reply.status_code == 200, reply.text
        (call,) = worker.calls
        assert {name: call.request.header(name) for name in HEADERS} == HEADERS
        return call.request


@pytest.mark.parametrize("end", [b"", b', "stream": true'], ids=["unary", "stream"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_body_arrives_byte_for_byte_but_for_an_id(gw: Gateway, route: Route, end: bytes) -> None:
    """SGLang reads the id from the body, so a missing one is added at the front; nothing else is added."""
    sent = BODIES[route.path] % end
    request = await arrived(gw, route, sent)
    if route is SGLANG:
        made = json.loads(request.body)["rid"]
        sent = b'{"rid":"%b",' % made.encode() + sent[1:]
    assert request.body == sent


@pytest.mark.parametrize(
    ("route", "method", "end"),
    [
        (SGLANG, "POST", b', "rid": "own-1"'),
        (SGLANG, "PUT", b', "rid": "put-1"'),
        (SGLANG, "POST", b', "filler": "%b", "rid": "big-1"' % (b"x" * 3_000_000)),
        (VLLM, "POST", b', "request_id": "own-1"'),
    ],
    ids=["sglang", "sglang-put", "sglang-3-megabytes", "vllm"],
)
async def test_body_with_an_id_of_its_own_arrives_without_any_change(
    gw: Gateway, route: Route, method: str, end: bytes
) -> None:
    """A body of over a mebibyte is parsed in steps."""
    sent = BODIES[route.path] % end
    assert (await arrived(gw, route, sent, method)).body == sent
