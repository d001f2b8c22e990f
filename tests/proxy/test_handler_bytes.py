"""What crosses the gateway, in both directions, on both endpoints: the same bytes."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime

import httpx
import pytest

from gateway.sim import Half, Reply, SimConfig, SimServer
from tests.support.gateway import RawClient, generates, rig, sse
from tests.support.generate import JSON, KINDS, LIMIT, PROMPT, body_of


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_body_with_odd_spelling_reaches_the_worker_unchanged(kind: str, stream: bool) -> None:
    """Unknown keys, 30-digit integers, 1e-7, duplicate keys, escapes and odd spaces all survive."""
    own_id = '"rid" :"caf\\u00e9-1",' if kind == "sglang" else '"request_id":"cafe-1",'
    body = (
        '{ "zzz":123456789012345678901234567890 ,"tiny":1e-7,"twice":1,"twice":2,\t"esc":"\\u00e9\\/",'
        f'{own_id}\n"{PROMPT[kind]}":  [1 ,2,3],"stream":{json.dumps(stream)},"none":null,'
        f'"sampling_params":{{"{LIMIT[kind]}":2, "temperature":0}}, "b":1,"a":{{"x":[[],{{}}]}} }}'
    ).encode()
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        reply = await gateway.client.post(KINDS[kind], content=body, headers=JSON)
        assert reply.status_code == 200, reply.text
        assert [arrival.body for arrival in generates(sim)] == [body]


async def test_id_that_the_gateway_makes_is_the_only_change_to_the_body() -> None:
    """Without an id of the client's, one member is put in front and every other byte stays."""
    big = b'"big":123456789012345678901234567890'
    body = b'{\n "input_ids":[1,2],%b,"sampling_params":{"max_new_tokens":1}}' % big
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        reply = await gateway.client.post("/generate", content=body, headers=JSON)
        [arrival] = generates(sim)
        made = reply.json()["meta_info"]["id"]
        assert arrival.body == body.replace(b"{", b'{"rid":"%b",' % made.encode(), 1)
        assert reply.headers["x-request-id"] == made


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_generate_answers_post_and_put_alike(method: str) -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        reply = await gateway.client.request(method, "/generate", json=body_of("sglang"))
        assert reply.status_code == 200
        assert len(reply.json()["output_ids"]) == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_other_methods_are_refused_with_those_there_are(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        reply = await gateway.client.get(KINDS[kind])
        assert reply.status_code == 405
        assert reply.headers["allow"] == ("POST, PUT" if kind == "sglang" else "POST")
        error = reply.json()["error"]
        assert KINDS[kind] in error["message"] and "POST" in error["message"]
        assert error.get("code", 405) == 405 and ("type" in error) is (kind == "vllm"), (
            "in the endpoint's shape"
        )
        assert not generates(sim)


@pytest.mark.parametrize("kind", KINDS)
async def test_end_to_end_headers_arrive_and_hop_by_hop_ones_do_not(kind: str) -> None:
    sent = {
        **JSON,
        "X-SMG-Routing-Key": "k1",
        "X-Session-ID": "s1",
        "X-data-parallel-rank": "0",
        "Authorization": "Bearer mine",
        "traceparent": "00-1-2-01",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "TE": "trailers",
    }
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        await gateway.client.post(KINDS[kind], content=json.dumps(body_of(kind)), headers=sent)
        [arrival] = generates(sim)
        names = [name.lower() for name, _ in arrival.headers]
        kept = set(sent) - {"Connection", "X-Hop", "TE"}
        assert all(arrival.header(name) == sent[name] for name in kept)
        assert not {b"x-hop", b"te", b"transfer-encoding"} & set(names)
        assert names.count(b"host") == names.count(b"content-length") == 1


@pytest.mark.parametrize("status", [200, 400, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("kind", KINDS)
async def test_status_bytes_and_headers_of_a_reply_come_back_as_the_worker_sent_them(
    kind: str, status: int
) -> None:
    answer = b'{ "weight_version":1,"n":123456789012345678901234567890,"f":1e-7,"id":"x","a":1,"a":2}\n'
    headers = (("Retry-After", "7"), ("X-Worker", "a"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(status=status, body=answer, headers=headers))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert (reply.status_code, reply.content) == (status, answer)
        assert reply.headers["retry-after"] == "7"
        assert reply.headers["x-worker"] == "a"
        assert reply.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("kind", KINDS)
async def test_plain_text_error_and_empty_body_are_passed_on(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(
            Reply(status=500, body=b"Internal Server Error", content_type="text/plain; charset=utf-8"),
            Reply(status=503, body=b"", content_type="text/plain"),
        )
        first = await gateway.client.post(KINDS[kind], json=body_of(kind))
        second = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert (first.status_code, first.content) == (500, b"Internal Server Error")
        assert first.headers["content-type"] == "text/plain; charset=utf-8"
        assert (second.status_code, second.content) == (503, b"")
        assert len(generates(sim)) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_reply_has_one_date_one_server_and_no_hop_by_hop_header(kind: str) -> None:
    headers = (
        ("Server", "uvicorn"),
        ("Date", "Sun, 29 Nov 2026 11:24:55 GMT"),
        ("Keep-Alive", "timeout=5"),
        ("X-Worker", "a"),
    )
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(body=b"{}", headers=headers))
        client = await RawClient.connect(gateway.port)
        client.request(KINDS[kind], json.dumps(body_of(kind)).encode())
        head = (await client.head()).decode().lower().split("\r\n")
        client.leave()
    names = [line.partition(":")[0] for line in head[1:] if line]
    assert names.count("server") == names.count("date") == names.count("content-length") == 1
    assert "keep-alive" not in names and "transfer-encoding" not in names
    assert "x-worker: a" in head
    parsedate_to_datetime(next(line for line in head if line.startswith("date:")).partition(":")[2])


@pytest.mark.parametrize("kind", KINDS)
async def test_unary_and_stream_through_the_gateway_equal_the_direct_reply(kind: str) -> None:
    """But for ids and timings."""
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        async with httpx.AsyncClient(trust_env=False) as direct:
            for stream in (False, True):
                sent = body_of(kind, tokens=6, stream=stream)
                expected = await direct.post(sim.url + KINDS[kind], json=sent)
                reply = await gateway.client.post(KINDS[kind], json=sent)
                assert reply.headers["content-type"] == expected.headers["content-type"]
                assert _essence(reply) == _essence(expected)


def _essence(reply: httpx.Response) -> object:
    if reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.content.endswith(b"data: [DONE]\n\n")
        return [_without_ids(event) for event in sse(reply.content)]
    return _without_ids(reply.json())


def _without_ids(value: object) -> object:
    dropped = {"id", "request_id", "created", "e2e_latency", "response_sent_to_client_ts", "cached_tokens"}
    dropped |= {"cached_tokens_details"}
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if key not in dropped}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", KINDS)
async def test_body_over_the_limit_is_refused_and_no_worker_sees_it(kind: str) -> None:
    """413 as JSON in the dialect, whether the length is announced or found out; the connection is kept."""
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, body_limit_mb=1) as gateway:
        large = b'{"x":"' + b"a" * (1024 * 1024) + b'"}'

        async def chunks() -> object:
            for start in range(0, len(large), 65536):
                yield large[start : start + 65536]

        announced = await gateway.client.post(KINDS[kind], content=large, headers=JSON)
        chunked = await gateway.client.post(KINDS[kind], content=chunks(), headers=JSON)  # type: ignore[arg-type]
        for reply in (announced, chunked):
            assert reply.status_code == 413
            assert reply.headers["content-type"] == "application/json"
            assert "limit" in reply.json()["error"]["message"]
        assert (await gateway.client.post(KINDS[kind], json=body_of(kind))).status_code == 200
        assert len(generates(sim)) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":}', b"[" * 100_000])
@pytest.mark.parametrize("kind", KINDS)
async def test_body_that_is_no_request_gets_the_dialects_400_and_keeps_the_connection(
    kind: str, body: bytes
) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        for _ in range(2):
            client.request(KINDS[kind], body)
            head = await client.head()
            assert head.startswith(b"HTTP/1.1 400 "), head
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
            )
            error = json.loads(await client.reader.readexactly(length))
            assert error["error"]["message"]
        client.leave()
        assert not generates(sim)


@pytest.mark.parametrize("kind", KINDS)
async def test_chunked_request_and_expect_100_continue_reach_the_worker_completely(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        body = json.dumps(body_of(kind, request_id="r", rid="r")).encode()
        client = await RawClient.connect(gateway.port)
        start = f"POST {KINDS[kind]} HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n".encode()
        client.writer.write(start + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body))
        assert (await client.head()).startswith(b"HTTP/1.1 100 ")
        client.writer.write(body)
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 200 ")
        client.leave()
        client = await RawClient.connect(gateway.port)
        client.writer.write(start + b"transfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 7):
            part = body[at : at + 7]
            client.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        client.writer.write(b"0\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        client.leave()
        assert [arrival.body for arrival in generates(sim)] == [body, body]


@pytest.mark.parametrize("kind", KINDS)
async def test_unary_reply_over_a_mebibyte_is_relayed_with_its_length(kind: str) -> None:
    answer = json.dumps({"text": "x" * 3_000_000, "output_ids": [1], "choices": [], "meta_info": {}}).encode()
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(body=answer))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, rid="mine", request_id="mine"))
        assert reply.content == answer
        assert reply.headers["content-length"] == str(len(answer))


@pytest.mark.parametrize("kind", KINDS)
async def test_long_unary_reply_cut_short_stays_visibly_cut(kind: str) -> None:
    """Above 1 MiB the status has been sent; the client must see that the body is incomplete."""
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Half(body=b'{"text":"' + b"x" * 3_000_000, length=6_000_000))
        with pytest.raises(httpx.RemoteProtocolError):
            await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert len(generates(sim)) == 1


@pytest.mark.parametrize("mode", ["incremental", "cumulative"])
async def test_fleet_whose_servers_stream_in_two_ways_looks_like_one(mode: str) -> None:
    """Each event holds what is new, or all so far, whatever flag the worker was started with."""
    one, two = (SimConfig(incremental_streaming_output=flag) for flag in (False, True))
    async with SimServer("sglang", one) as cumulative, SimServer("sglang", two) as incremental:
        workers = cumulative.url, incremental.url
        async with rig(*workers, router_mode="round_robin", sglang_stream_mode=mode) as gateway:
            for _ in workers:
                reply = await gateway.client.post("/generate", json=body_of("sglang", 4, True))
                grown = [len(event["output_ids"]) for event in sse(reply.content)]
                assert grown == ([1, 1, 1, 1] if mode == "incremental" else [1, 2, 3, 4])
            assert len(generates(cumulative)) == len(generates(incremental)) == 1
