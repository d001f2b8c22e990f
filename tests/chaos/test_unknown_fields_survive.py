"""What the gateway does not know of a request arrives at the worker as it was sent."""

from __future__ import annotations

import json

import pytest

from tests.chaos.dialects import ROUTES, SGLANG, VLLM, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import ReceivedRequest, workers

#: What a body is made of in the order of our choosing; two blanks after one colon, odd numbers.
ODD = (
    b'"zzz_unknown": {"deep": [1, {"er": null}]}, "big": 9007199254740993, "tiny": 1e-7, "blanks":  "two"'
    b', "bigger": 123456789012345678901234567890, "twice": 1, "twice": 2, "esc": "caf\\u00e9\\/", '
)
SGLANG_BODY = (
    b"{" + ODD + b'"return_routed_experts": true, "routed_experts_start_len": 7, "return_indexer_topk": false'
    b', "lora_path": "adapters/a", "custom_logit_processor": "x", "image_data": null'
    b', "logprob_start_len": null, "sampling_params": {"custom_params": {"return_top_p_token_ids": true}'
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
    "X-Nobody-Knows": "what, this; is=for",
}


async def arrived(gw: Gateway, route: Route, body: bytes, method: str = "POST") -> ReceivedRequest:
    """What the worker gets when this is sent."""
    async with workers(route.kind, 1) as (worker,):
        await gw.serve(worker)
        headers = {"content-type": "application/json", **HEADERS}
        reply = await gw.client.request(method, route.path, content=body, headers=headers)
        assert reply.status_code == 200, reply.text
        (call,) = worker.calls
        return call.request


@pytest.mark.parametrize("end", [b"", b', "stream": true'], ids=["unary", "stream"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_body_arrives_byte_for_byte_but_for_an_id(gw: Gateway, route: Route, end: bytes) -> None:
    """SGLang reads the id from the body, so one that is missing is put in front; nothing else is added."""
    sent = BODIES[route.path] % end
    request = await arrived(gw, route, sent)
    if route is SGLANG:
        made = json.loads(request.body)["rid"]
        sent = b'{"rid":"%b",' % made.encode() + sent[1:]
    assert request.body == sent


async def test_put_is_as_good_as_post(gw: Gateway) -> None:
    sent = SGLANG_BODY % b', "rid": "put-1"'
    assert (await arrived(gw, SGLANG, sent, "PUT")).body == sent


@pytest.mark.parametrize(
    ("route", "own"),
    [(SGLANG, b', "rid": "own-%d"'), (VLLM, b', "request_id": "own-%d"')],
    ids=["sglang", "vllm"],
)
async def test_body_with_an_id_of_its_own_arrives_without_any_change(
    gw: Gateway, route: Route, own: bytes
) -> None:
    sent = BODIES[route.path] % (own % id(route))
    assert (await arrived(gw, route, sent)).body == sent


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_headers_arrive(gw: Gateway, route: Route) -> None:
    request = await arrived(gw, route, BODIES[route.path] % b"")
    assert {name: request.header(name.lower()) for name in HEADERS} == HEADERS


async def test_body_over_a_mebibyte_arrives_byte_for_byte_too(gw: Gateway) -> None:
    """Such a one is read in steps."""
    sent = SGLANG_BODY % (b', "filler": "%b", "rid": "big-1"' % (b"x" * 3_000_000))
    assert (await arrived(gw, SGLANG, sent)).body == sent


async def test_control_call_arrives_byte_for_byte(gw: Gateway) -> None:
    """At every worker, with its unknown fields."""
    sent = b'{"zzz":  1e-7, "model_path": "/m", "load_format": null, "big": 9007199254740993}'
    async with workers("sglang", 2) as fleet:
        await gw.serve(*fleet)
        await gw.client.post(
            "/update_weights_from_disk", content=sent, headers={"content-type": "application/json"}
        )
        requests = [each for worker in fleet for each in worker.requests_to("/update_weights_from_disk")]
        assert [request.body for request in requests] == [sent, sent]
