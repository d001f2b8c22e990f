"""Ids: the client sees its own, the engine one that is safe, and no exchange ever touches another."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.proxy import live
from gateway.proxy.live import STREAM_LINGER
from gateway.sim import SimConfig, SimServer
from gateway.sim.request_log import Arrival
from tests.support.gateway import RawClient, Rig, arrived, eventually, generates, rig, until
from tests.support.generate import ABORT, ID, JSON, KINDS, abort_of, body_of, finish_of

#: Ids that something between a client and an engine could spell in another way.
ODD = {
    "emoji": "job-🎉👩‍🚀",
    "right-to-left": "עבודה-\u202e-1",
    "quotes": 'say "it\'s" `so`',
    "backslashes": "c:\\new\\table\\\\",
    "nul": "a\x00b",
    "controls": "a\r\nb\tc\x7f\x1b[2J",
    "separators": "a\u2028b\u2029c\ufeffd",
    "blanks": "  padded  ",
    "json": '"},{"meta_info":{"id":"x',
    "event": "x\n\ndata: [DONE]\n\n",
    "10-kB": "x" * 10_000,
    "10-kB-wide": "ж" * 5_000,
}


def named(kind: str, name: object, tokens: int = 3, *, stream: bool = False) -> dict[str, object]:
    return body_of(kind, tokens, stream, **{ID[kind]: name})


def shown(kind: str, document: Any) -> str:
    if kind == "sglang":
        return str(document["meta_info"]["id"])
    return str(document["request_id"]).removeprefix("generate-tokens-")


def spelled_at_the_engine(arrival: Arrival) -> str:
    return arrival.ids[0].removeprefix("generate-tokens-")


def expected_at_the_engine(kind: str, sent: bytes, name: object, dispatch: object) -> bytes:
    """``sent`` with nothing changed but the value of its id, where the engine takes the id from the body."""
    if kind == "vllm" or name == dispatch:
        return sent
    return sent.replace(json.dumps(name).encode(), json.dumps(dispatch).encode(), 1)


@dataclass
class Job:
    """A stream under the id its client gave to it."""

    client: RawClient
    sent: bytes

    async def rest(self) -> list[Any]:
        await self.client.head()
        body = await self.client.reader.readuntil(b"data: [DONE]\n\n")
        events = [line.partition(b"data: ")[2] for line in body.split(b"\n") if b"data: " in line]
        return [json.loads(event) for event in events if not event.startswith(b"[DONE]")]


@dataclass
class Stage:
    """One engine behind a gateway, and streams that start one after the other."""

    kind: str
    sim: SimServer
    gateway: Rig
    jobs: list[Job] = field(default_factory=list)

    async def start(self, name: object, tokens: int = 25, **extra: object) -> Job:
        client = await RawClient.connect(self.gateway.port, limit=2**22)
        sent = json.dumps({**named(self.kind, name, tokens, stream=True), **extra}).encode()
        before = len(generates(self.sim))
        client.request(KINDS[self.kind], sent)
        await arrived(before + 1, self.sim)
        job = Job(client, sent)
        self.jobs.append(job)
        return job

    async def abort(self, name: str) -> int:
        reply = await self.gateway.client.post(ABORT[self.kind], json=abort_of(self.kind, name))
        return int(reply.json()["aborted"])

    async def ask(self, body: object, **headers: str) -> tuple[Any, Arrival]:
        """A unary exchange: its reply, and what the engine got of it."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await self.gateway.client.post(KINDS[self.kind], content=raw, headers={**JSON, **headers})
        assert reply.status_code == 200, reply.text
        return reply.json(), generates(self.sim)[-1]


@asynccontextmanager
async def stage(kind: str) -> AsyncIterator[Stage]:
    async with SimServer(kind, SimConfig(token_delay=0.01)) as sim, rig(sim.url) as gateway:
        on = Stage(kind, sim, gateway)
        yield on
        for job in on.jobs:
            job.client.leave()
            await job.client.writer.wait_closed()


def assert_ran_to_its_end(kind: str, name: str, events: list[Any]) -> None:
    assert {shown(kind, event) for event in events} == {name}
    assert finish_of(kind, events[-1]) == "length"


DIFFERENT = [("job-1", "job-10"), ("job-10", "job-1"), ("", "x"), ("x", "")]
NEIGHBOURS = [
    *((first, second, "leave") for first, second in (*DIFFERENT, ("twin", "twin"), ("", ""))),
    # An abort of an id is about all that run under it.
    *((first, second, "abort") for first, second in DIFFERENT),
]


@pytest.mark.parametrize(("first", "second", "end"), NEIGHBOURS)
@pytest.mark.parametrize("kind", KINDS)
async def test_ending_one_exchange_touches_no_other_whatever_they_are_called(
    kind: str, first: str, second: str, end: str
) -> None:
    """The same id twice, an id that begins another, none at all; on an engine that matches by prefix."""
    async with stage(kind) as on:
        ending, staying = await on.start(first), await on.start(second)
        bodies = [arrival.body for arrival in generates(on.sim)]
        inner = [spelled_at_the_engine(arrival) for arrival in generates(on.sim)]
        if end == "leave":
            ending.client.leave(reset=True)
            await on.sim.client_gone(1)
        else:
            # An engine takes an empty id for none, or for a beginning of all; here it names nothing.
            assert await on.abort(first) == (1 if first or kind == "vllm" else 0)
        assert_ran_to_its_end(kind, second, await staying.rest())
        assert len(set(inner)) == 2 and not any(a != b and a.startswith(b) for a in inner for b in inner)
        for name, job, body, dispatch in zip((first, second), (ending, staying), bodies, inner, strict=True):
            assert body == expected_at_the_engine(kind, job.sent, name, dispatch)


@pytest.mark.parametrize("kind", KINDS)
async def test_engine_id_of_an_ended_stream_is_not_reused_for_some_seconds(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(kind) as on:
        assert STREAM_LINGER > 2
        for name in ("stream", "stream-2"):
            assert_ran_to_its_end(kind, "stream", await (await on.start("stream", 2)).rest())
            reply, arrival = await on.ask(named(kind, name))
            assert shown(kind, reply) == name
            assert spelled_at_the_engine(arrival) not in ("stream", "stream-2")
        monkeypatch.setattr(live, "STREAM_LINGER", 0.01)
        await (await on.start("soon", 2)).rest()

        async def free() -> bool:
            _, arrival = await on.ask(named(kind, "soon"))
            return spelled_at_the_engine(arrival) == "soon"

        await eventually(free)


@pytest.mark.parametrize("kind", KINDS)
async def test_abort_of_an_id_ends_all_that_run_under_it(kind: str) -> None:
    """That is what the id means to the clients; a third exchange goes on."""
    async with stage(kind) as on:
        twins, other = [await on.start("twin"), await on.start("twin")], await on.start("twin-2")
        assert await on.abort("twin") == 2
        for job in twins:
            events = await job.rest()
            assert finish_of(kind, events[-1]) == "abort"
            assert {shown(kind, event) for event in events} == {"twin"}
        assert_ran_to_its_end(kind, "twin-2", await other.rest())


@pytest.mark.parametrize("taken", [False, True], ids=["free", "in-flight"])
@pytest.mark.parametrize("name", ODD.values(), ids=ODD)
@pytest.mark.parametrize("kind", KINDS)
async def test_client_sees_its_own_id_however_it_is_spelled(kind: str, name: str, taken: bool) -> None:
    """Unary and stream, also where the engine had to be given another one."""
    async with stage(kind) as on:
        holder = await on.start(name, 2000) if taken else None
        sent = json.dumps(named(kind, name)).encode()
        reply, arrival = await on.ask(sent)
        assert shown(kind, reply) == name
        dispatch = spelled_at_the_engine(arrival)
        assert arrival.body == expected_at_the_engine(kind, sent, name, dispatch)
        if taken:
            assert dispatch not in (name, "")
        assert_ran_to_its_end(kind, name, await (await on.start(name)).rest())
        if holder is not None:
            assert await on.abort(name) == 1
            assert {shown(kind, event) for event in await holder.rest()} == {name}


@pytest.mark.parametrize("kind", KINDS)
async def test_id_that_unicode_cannot_hold_touches_nobody(kind: str) -> None:
    """Half a surrogate pair has no UTF-8: refused, or answered, but nothing else is harmed."""
    async with stage(kind) as on:
        staying = await on.start("staying")
        for escape in (b"\\ud800", b"\\udfff", b"a\\ud83d", b"\\udc00\\ud800"):
            sent = json.dumps(named(kind, "@")).encode().replace(b'"@"', b'"%b"' % escape)
            reply = await on.gateway.client.post(KINDS[kind], content=sent, headers=JSON)
            assert reply.status_code in (200, 400)
            assert reply.json()
        assert_ran_to_its_end(kind, "staying", await staying.rest())


@pytest.mark.parametrize("kind", KINDS)
async def test_escaped_id_is_the_id_it_means(kind: str) -> None:
    """An abort finds it under any spelling, and a replaced one leaves the rest of the body alone."""
    async with stage(kind) as on:
        running = await on.start("café/1", 1000)
        assert b"caf\\u00e9/1" in running.sent
        other = json.dumps(named(kind, "@")).encode().replace(b"@", b"caf\xc3\xa9\\/1")
        reply, arrival = await on.ask(other)
        assert shown(kind, reply) == "café/1"
        dispatch = spelled_at_the_engine(arrival).encode()
        assert arrival.body == (other if kind == "vllm" else other.replace(b"caf\xc3\xa9\\/1", dispatch))
        assert await on.abort("café/1") == 1
        assert finish_of(kind, (await running.rest())[-1]) == "abort"


@pytest.mark.parametrize("kind", KINDS)
async def test_id_can_be_used_again_right_after_its_end(kind: str) -> None:
    """A completed unary one as it is; the engine may still be at work under a cancelled one."""
    async with stage(kind) as on:
        for _ in range(3):
            reply, arrival = await on.ask(named(kind, "again"))
            assert shown(kind, reply) == spelled_at_the_engine(arrival) == "again"
        for round in (1, 2):
            leaver = await on.start("again", 200)
            leaver.client.leave(reset=True)
            await on.sim.client_gone(round)
            reply, arrival = await on.ask(named(kind, "again"))
            assert shown(kind, reply) == "again"
            assert spelled_at_the_engine(arrival) != "again"
            assert finish_of(kind, reply) == "length"


@pytest.mark.parametrize("kind", KINDS)
async def test_id_in_header_and_body_is_taken_in_the_order_of_the_engine(kind: str) -> None:
    async with stage(kind) as on:
        reply, _ = await on.ask(named(kind, "of-body"), **{"x-request-id": "of-header"})
        assert shown(kind, reply) == ("of-body" if kind == "sglang" else "of-header")
        reply, arrival = await on.ask(body_of(kind), **{"x-request-id": "of-header"})
        assert shown(kind, reply) == spelled_at_the_engine(arrival) == "of-header"
        made = await on.gateway.client.post(KINDS[kind], json=body_of(kind))
        assert len(shown(kind, made.json())) == 32
        assert made.headers["x-request-id"] == shown(kind, made.json())
        reply, arrival = await on.ask(body_of(kind), **{"x-request-id": ""})
        assert shown(kind, reply) == ("" if kind == "vllm" else spelled_at_the_engine(arrival))
        assert spelled_at_the_engine(arrival)


async def test_id_with_blanks_at_its_ends_is_in_the_reply_and_in_no_header() -> None:
    """A header line cannot hold them, and a name that is only nearly the client's is not its own."""
    async with stage("sglang") as on:
        for name, line in (("whole", "whole"), (" a", None), ("a ", None), ("   ", None), ("", None)):
            reply = await on.gateway.client.post("/generate", json=named("sglang", name))
            assert shown("sglang", reply.json()) == name
            assert reply.headers.get("x-request-id") == line


def _batch(names: object) -> dict[str, object]:
    return {**named("sglang", names), "input_ids": [[1, 2], [3, 4]]}


async def test_batch_with_a_list_of_ids_keeps_each_in_its_place() -> None:
    names = ["left", "right"]
    async with stage("sglang") as on:
        reply, arrival = await on.ask(_batch(names))
        assert [shown("sglang", item) for item in reply] == arrival.ids == names
        holder = await on.start("right-hand", 2000)
        sent = json.dumps(_batch(names)).encode()
        reply, arrival = await on.ask(sent)
        assert [shown("sglang", item) for item in reply] == names
        assert len(set(arrival.ids)) == 2 and not set(arrival.ids) & set(names)
        private = json.dumps(arrival.ids, separators=(",", ":"))
        assert arrival.body == sent.replace(json.dumps(names).encode(), private.encode())
        assert await on.abort("right-hand") == 1
        await holder.rest()


async def test_batch_with_one_id_numbers_its_prompts_as_the_engine_does() -> None:
    async with stage("sglang") as on:
        reply, _ = await on.ask(_batch("both"))
        assert [shown("sglang", item) for item in reply] == ["both_0", "both_1"]
        holder = await on.start("both", 2000)
        reply, arrival = await on.ask(_batch("both"))
        assert [shown("sglang", item) for item in reply] == ["both_0", "both_1"]
        assert not any(inner.startswith("both") for inner in arrival.ids)
        assert await on.abort("both") == 1
        await holder.rest()


@pytest.mark.parametrize("end", ["leave", "abort"])
async def test_batch_or_prompt_of_it_that_ends_early_touches_no_other(end: str) -> None:
    """An abort of one id of its list ends that prompt only."""
    async with stage("sglang") as on:
        batch = await on.start(["left", "right"], input_ids=[[1, 2], [3, 4]])
        staying = {name: await on.start(name) for name in ("left", "right-1", "other")}
        if end == "leave":
            batch.client.leave(reset=True)
            await on.sim.client_gone(1)
        else:
            assert await on.abort("right") == 1
            last = {shown("sglang", event): event for event in await batch.rest()}
            ends = {name: finish_of("sglang", event) for name, event in last.items()}
            assert ends == {"left": "length", "right": "abort"}
            assert [call.ids for call in on.sim.aborts] == [("right",)]
        for name, job in staying.items():
            assert_ran_to_its_end("sglang", name, await job.rest())


async def test_abort_of_parallel_samples_closes_them_and_nothing_else() -> None:
    """This engine drops the caller's id when it fans out: only closing the connection stops it."""
    async with stage("sglang") as on:
        params = {"max_new_tokens": 1000, "n": 2}
        fan, staying = await on.start("fan", sampling_params=params), await on.start("fan-1")
        assert await on.abort("fan") == 1
        gone = await on.sim.client_gone(1)
        assert gone is generates(on.sim)[0]
        sent = await fan.client.reader.readuntil(b"[DONE]\n\n")
        assert b'data: {"error":' in sent
        assert_ran_to_its_end("sglang", "fan-1", await staying.rest())
        assert on.sim.aborts == []
        await until(lambda: on.gateway.app.lifecycle.open_exchanges == 0)
