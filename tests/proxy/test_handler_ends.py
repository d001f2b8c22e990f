"""How exchanges end: client disconnects, workers that break, abort calls. (Ids: test_ids.py)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.sim import Drop, Half, Pace, Raw, Reply, Silence, SimConfig, SimServer
from tests.support.gateway import RawClient, Rig, all_released, arrived, generates, rig, sse, until
from tests.support.generate import KINDS, body_of

#: Seconds within which a client's disconnect has to reach its engine.
NOTICED = 0.25


def _aborted(sim: SimServer) -> list[tuple[str, ...]]:
    return [call.ids for call in sim.aborts]


@pytest.mark.virtual_time
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("moment", ["waiting", "before-first-byte", "silence", "mid-stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_leaving_closes_the_worker_and_aborts_exactly_that_id(
    kind: str, moment: str, reset: bool
) -> None:
    """Whatever the moment and however the client disconnects, and within the time that the timers allow."""
    paces: dict[str, Pace | Silence] = {
        "waiting": Silence(),
        "before-first-byte": Pace(prefill_base=60.0),
        "silence": Pace(stall_after=2),
        "mid-stream": Pace(token_delay=0.02),
    }
    pace = paces[moment]
    stream = moment != "waiting"
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(pace)
        client = await RawClient.connect(gateway.port)
        sent = body_of(kind, 2000, stream, rid="leaver", request_id="leaver")
        client.request(KINDS[kind], json.dumps(sent).encode())
        await arrived(1, sim)
        if stream:
            await client.head()
        if moment in ("silence", "mid-stream"):
            await client.reader.readuntil(b"\n\n")
        loop = asyncio.get_running_loop()
        left_at = loop.time()
        client.leave(reset=reset)
        gone = await sim.client_gone(1)
        assert gone.client_gone is not None and gone.client_gone - left_at < NOTICED
        await until(lambda: len(sim.aborts) == 1)
        assert sim.aborts[0].at - left_at < NOTICED
        expected = "leaver" if kind == "sglang" else "generate-tokens-leaver"
        assert _aborted(sim) == [(expected,)]
        await until(lambda: all_released(gateway))
        assert len(generates(sim)) == 1
        metrics = (await gateway.client.get("/metrics")).text
        assert 'status="error",error_type="cancelled"} 1' in metrics


async def test_disconnect_reaches_the_engine_within_250_ms() -> None:
    """The best of three counts: other processes may take the processor in between."""
    took = []
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        for count in (1, 2, 3):
            sim.behave(Pace(stall_after=2))
            client = await RawClient.connect(gateway.port)
            client.request("/generate", json.dumps(body_of("sglang", 2000, True)).encode())
            await client.reader.readuntil(b"\n\n")
            left_at = asyncio.get_running_loop().time()
            client.leave()
            await sim.abort_called(count)
            took.append(sim.aborts[-1].at - left_at)
    assert min(took) < NOTICED


@pytest.mark.parametrize("kind", KINDS)
async def test_leaving_while_the_body_comes_sends_nothing_to_a_worker(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(
            f"POST {KINDS[kind]} HTTP/1.1\r\nhost: g\r\ncontent-length: 1000\r\n\r\n{{".encode()
        )
        await until(lambda: gateway.app.lifecycle.open_exchanges == 1)
        client.leave(reset=True)
        await until(lambda: all_released(gateway))
        assert not generates(sim) and not sim.aborts


@pytest.mark.parametrize("kind", KINDS)
async def test_worker_that_refuses_connections_is_skipped_at_once(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as gone, SimServer(kind, SimConfig()) as sim:
        async with rig(gone.url, sim.url, probe_interval_secs=60) as gateway:
            await gone.kill()
            replies = await asyncio.gather(
                *(gateway.client.post(KINDS[kind], json=body_of(kind)) for _ in range(40))
            )
            assert [reply.status_code for reply in replies] == [200] * 40
            assert len(generates(sim)) == 40
            assert sum(worker.state == "ready" for worker in gateway.app.fleet.workers) == 1


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("kind", KINDS)
async def test_lost_unary_reply_is_a_502_and_not_a_second_generation(kind: str, reset: bool) -> None:
    """Also on a connection that was used before, and with another worker at hand."""
    async with SimServer(kind, SimConfig()) as one, SimServer(kind, SimConfig()) as two:
        async with rig(one.url, two.url) as gateway:
            for _ in range(4):
                await gateway.client.post(KINDS[kind], json=body_of(kind))
            for sim in (one, two):
                sim.behave(Drop(reset=reset))
            before = len(generates(one, two))
            reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
            assert reply.status_code == 502
            assert reply.json()["error"]["message"]
            assert len(generates(one, two)) == before + 1


@pytest.mark.parametrize("kind", KINDS)
async def test_half_of_a_unary_reply_is_a_502(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Half(body=b'{"text":"half'))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert reply.status_code == 502
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("cut", ["fin", "rst", "chunk"])
@pytest.mark.parametrize("kind", KINDS)
async def test_stream_that_breaks_ends_with_an_error_event_in_the_dialect(kind: str, cut: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Pace(cut_after=3, cut=cut))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 50, True))
        assert reply.status_code == 200
        assert reply.content.endswith(b"data: [DONE]\n\n")
        events = sse(reply.content)
        assert events[-1]["error"]["message"]
        assert not any("error" in event for event in events[:-1])
        await until(lambda: len(sim.aborts) == 1)
        assert len(generates(sim)) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_stream_that_ends_without_a_terminal_event_is_a_failure(kind: str) -> None:
    """A clean end of the connection is no clean end of the generation."""
    event = b'data: {"output_ids":[1],"meta_info":{"finish_reason":null},"choices":[]}\n\n'
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        for ending in (b"", b"data: [DONE]\n\n"):
            sim.behave(Reply(body=event + ending, content_type="text/event-stream"))
            reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 5, True))
            assert reply.content.startswith(event)
            assert reply.content.count(b"[DONE]") == 1
            assert "error" in sse(reply.content)[-1]


@pytest.mark.parametrize(
    "nonsense",
    [
        Raw(data=b"SSH-2.0-OpenSSH_9.2\r\n"),
        Raw(data=b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!"),
        Raw(data=b"HTTP/1.1 999 What\r\ncontent-length: 0\r\n\r\n"),
        Raw(data=b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"),
        Reply(body=b"\x00\x01nonsense"),
        Reply(body=b'{"text": "unfinished'),
        Reply(body=b'"just a string"'),
    ],
    ids=["banner", "two-lengths", "status-999", "upgrade", "binary", "half-json", "string"],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_nonsense_from_a_worker_is_a_502_and_an_abort(kind: str, nonsense: Raw | Reply) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(nonsense)
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert reply.status_code == 502
        assert reply.json()["error"]["message"]
        await until(lambda: len(sim.aborts) == 1)
        assert len(generates(sim)) == 1


@pytest.mark.parametrize("event", [b"data: {nonsense\n\n", b"data: \xff\xfe\n\n", b"data: 5\n\n"])
@pytest.mark.parametrize("kind", KINDS)
async def test_nonsense_in_a_stream_is_an_error_event_and_an_abort(kind: str, event: bytes) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(body=event, content_type="text/event-stream; charset=utf-8"))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 5, True))
        assert reply.status_code == 200
        assert event not in reply.content
        assert sse(reply.content)[-1]["error"]["message"]
        assert reply.content.endswith(b"data: [DONE]\n\n")
        await until(lambda: len(sim.aborts) == 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_no_worker_is_a_503_that_says_when_to_come_back(kind: str) -> None:
    async with rig() as gateway:
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["message"]


@pytest.mark.parametrize("kind", KINDS)
async def test_storm_of_bad_requests_leaves_the_workers_in_service(kind: str) -> None:
    bad = Reply(status=400, body=b'{"error":{"message":"The input (50000 tokens) is longer"}}')
    async with SimServer(kind, SimConfig()) as one, SimServer(kind, SimConfig()) as two:
        async with rig(one.url, two.url) as gateway:
            for sim in (one, two):
                sim.behave(*[bad] * 50)
            sent = [gateway.client.post(KINDS[kind], json=body_of(kind)) for _ in range(100)]
            refused = [reply for reply in await asyncio.gather(*sent) if reply.status_code == 400]
            assert all(reply.content == bad.body for reply in refused)
            good = await asyncio.gather(
                *(gateway.client.post(KINDS[kind], json=body_of(kind)) for _ in range(20))
            )
            assert all(reply.status_code in (200, 400) for reply in good)
            assert len(generates(one, two)) == 120
            assert all(worker.state == "ready" for worker in gateway.app.fleet.workers)


async def test_cause_of_a_workers_failure_is_logged_once_without_the_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And not at all where the client or the gateway is at fault."""
    caplog.set_level("INFO", "gateway.proxy.live")
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, probe_interval_secs=60) as gateway:
        sim.behave(Reply(body=b'{"secret":', content_type="application/json"))
        assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 502
        assert (await gateway.client.post("/generate", content=b"{")).status_code == 400
        sim.behave(Drop(reset=True))
        assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 502
        await sim.kill()
        assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 502
        lines = [record.getMessage() for record in caplog.records if record.name == "gateway.proxy.live"]
        malformed, incomplete, gone = lines
        assert malformed.startswith(f"upstream_malformed at {sim.url}: ") and "secret" not in malformed
        assert malformed.endswith("(DecodeError)")
        assert incomplete.startswith(f"upstream_incomplete at {sim.url}: ") and "reset by peer" in incomplete
        assert gone.startswith("connect_failed at ") and "(ConnectionRefusedError: " in gone


@pytest.mark.parametrize("kind", KINDS)
async def test_abort_call_reaches_the_holder_and_only_the_named_request(kind: str) -> None:
    path = {"sglang": "/abort_request", "vllm": "/inference/v1/abort_requests"}[kind]
    config = SimConfig(token_delay=0.02)
    async with SimServer(kind, config) as one, SimServer(kind, config) as two:
        async with rig(one.url, two.url, router_mode="round_robin") as gateway:
            runs = {
                name: asyncio.ensure_future(
                    gateway.client.post(KINDS[kind], json=body_of(kind, 1000, rid=name, request_id=name))
                )
                for name in ("A", "B")
            }
            await arrived(2, one, two)
            named = {"rid": "A"} if kind == "sglang" else {"request_ids": ["generate-tokens-A"]}
            answer = await gateway.client.post(path, json=named)
            assert answer.status_code == 200 and answer.json()["aborted"] == 1
            finish = _finish(kind, (await runs["A"]).json())
            assert finish == "abort"
            assert not runs["B"].done()
            assert len(one.aborts) + len(two.aborts) == 1
            unknown = {"rid": "nobody"} if kind == "sglang" else {"request_ids": ["nobody"]}
            assert (await gateway.client.post(path, json=unknown)).json()["aborted"] == 0
            if kind == "sglang":
                assert (await gateway.client.post(path, json={"abort_all": True})).json()["aborted"] == 1
                assert _finish(kind, (await runs["B"]).json()) == "abort"
            else:
                runs["B"].cancel()


@asynccontextmanager
async def _connecting(gateway: Rig) -> AsyncIterator[asyncio.Event]:
    """Keep the gateway's connections to its worker open until the event is set, or the end."""
    [worker] = gateway.app.fleet.workers
    loop, go_on, asked = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    connect: Callable[..., Awaitable[Any]] = loop.create_connection

    async def held(factory: object, host: object = None, port: object = None, **options: object) -> Any:
        if port == worker.address.port:
            asked.set()
            await go_on.wait()
        return await connect(factory, host, port, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_connection", held)
        yield go_on
    assert asked.is_set()


@pytest.mark.parametrize("kind", KINDS)
async def test_abort_while_connecting_ends_the_request_before_any_worker_has_it(kind: str) -> None:
    path = {"sglang": "/abort_request", "vllm": "/inference/v1/abort_requests"}[kind]
    named = {"rid": "A"} if kind == "sglang" else {"request_ids": ["A"]}
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        async with _connecting(gateway) as go_on:
            body = body_of(kind, rid="A", request_id="A")
            run = asyncio.ensure_future(gateway.client.post(KINDS[kind], json=body))
            await until(lambda: gateway.app.fleet.workers[0].in_flight == 1)
            answer = await gateway.client.post(path, json=named)
            assert answer.status_code == 200
            assert answer.json() == {"aborted": 1, "results": [{"worker": None, "aborted": 1, "error": None}]}
            reply = await run
            assert reply.status_code == 499
            assert "aborted" in reply.json()["error"]["message"]
            go_on.set()
        assert (await gateway.client.post(KINDS[kind], json=body_of(kind))).status_code == 200
        assert len(generates(sim)) == 1, "only the one that came later"
        assert not sim.aborts


async def test_abort_of_a_part_of_a_batch_while_connecting_ends_that_part_only() -> None:
    config = SimConfig(token_delay=0.02)
    async with SimServer("sglang", config) as sim, rig(sim.url) as gateway:
        async with _connecting(gateway) as go_on:
            body = body_of("sglang", 20, input_ids=[[1, 2], [3, 4]], rid=["left", "right"])
            run = asyncio.ensure_future(gateway.client.post("/generate", json=body))
            await until(lambda: gateway.app.fleet.workers[0].in_flight == 1)
            answer = await gateway.client.post("/abort_request", json={"rid": "left"})
            assert answer.json()["aborted"] == 1
            go_on.set()
            assert [_finish("sglang", one) for one in (await run).json()] == ["abort", "length"]
        assert _aborted(sim) == [("left",)]


def _finish(kind: str, reply: dict[str, object]) -> str:
    if kind == "sglang":
        return str(reply["meta_info"]["finish_reason"]["type"])  # type: ignore[index]
    return str(reply["choices"][0]["finish_reason"])  # type: ignore[index]


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_silence_of_a_stream_is_filled_only_when_asked_for(kind: str) -> None:
    async with (
        SimServer(kind, SimConfig()) as sim,
        rig(sim.url, sse_keep_alive_interval_ms=9000) as gateway,
    ):
        sim.behave(Pace(prefill_base=25.0))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 2, True), timeout=None)
        assert reply.content.count(b":\n\n") == 2
        assert reply.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_silence_of_a_compressed_stream_is_left_alone(kind: str) -> None:
    """A comment in the middle of it would break all that follows."""
    started = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\nhalf"
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, sse_keep_alive_interval_ms=10) as gateway:
        sim.behave(Raw(data=started, close=False))
        client = await RawClient.connect(gateway.port)
        client.request(KINDS[kind], json.dumps(body_of(kind, 2, True)).encode())
        await client.reader.readuntil(b"half\r\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await client.reader.read(1)
        client.leave()


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_reply_after_a_long_silence_is_complete(kind: str) -> None:
    """Two minutes: there is no limit on a worker's silence unless one is configured."""
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Pace(prefill_base=120.0))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind), timeout=None)
        assert reply.status_code == 200
        assert len(generates(sim)) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_metrics_tell_each_outcome_once(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        assert (await gateway.client.post(KINDS[kind], json=body_of(kind))).status_code == 200
        assert (await gateway.client.post(KINDS[kind], json=body_of(kind, 4, True))).status_code == 200
        assert (await gateway.client.post(KINDS[kind], content=b"{")).status_code == 400
        sim.behave(Reply(status=503, body=b"{}"))
        assert (await gateway.client.post(KINDS[kind], json=body_of(kind))).status_code == 503
        text = (await gateway.client.get("/metrics")).text
        counts = {
            line.rsplit(" ", 1)[0].partition("{")[2]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith("dynamo_frontend_requests_total{")
        }
        start = 'model="sim",endpoint="generate",request_type='
        assert counts[f'{start}"unary",status="success",error_type=""}}'] == 1
        assert counts[f'{start}"stream",status="success",error_type=""}}'] == 1
        assert counts[f'{start}"unary",status="error",error_type="unavailable"}}'] == 1
        unknown = start.replace('"sim"', '"unknown_model"')
        assert counts[f'{unknown}"unary",status="error",error_type="validation"}}'] == 1
        assert 'dynamo_frontend_output_tokens_total{model="sim"} 7' in text
