"""The suite that any format must pass on the wire: a client, a whole gateway, a scripted worker.

Owns: what a client of a generate endpoint sees and what its worker gets, whatever the dialect. Must never
enter: a dialect, what the gateway does for no client to see.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import Phase, find, settings

from gateway.errors import GatewayError, InvalidRequest, NoWorker, RequestTooLarge, UpstreamMalformed
from gateway.formats.contract import Ending, ReplyHead, header
from gateway.formats.worker_contract import ProbeReply
from gateway.testing.drive import Asked, respelled
from gateway.testing.model import EngineModel, ModelExchange
from gateway.testing.rig import Rig, rig, until
from gateway.testing.worker import Answer, Call, End, ScriptedWorker

_SEARCH = settings(max_examples=1000, phases=[Phase.generate], database=None, derandomize=True, deadline=None)

JSON = (b"content-type", b"application/json")
_UNKNOWN = ProbeReply(404, b"")


class Wire:
    """One test's gateway, its worker, and the exchange that goes through them."""

    def __init__(self, asked: Asked, path: str, gateway: Rig, worker: ScriptedWorker) -> None:
        self.exchange = asked.exchange
        self.ids = asked.projection.ids
        self.path = path
        self.gateway = gateway
        self.worker = worker
        self._asked = asked

    def answer(self, *pieces: bytes, end: End = End.WHOLE) -> None:
        """Have the worker stream ``pieces``."""
        self.worker.answers.append(Answer(self.exchange.stream_head, pieces, end))

    def answer_whole(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Have the worker reply without a stream."""
        self.worker.answers.append(Answer(ReplyHead(status, headers), (body,)))

    async def post(self, body: bytes | None = None) -> httpx.Response:
        """The exchange's request, or ``body``."""
        sent = self.exchange.body if body is None else body
        return await self.gateway.client.post(self.path, content=sent, headers=self._headers())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """The exchange's request, its reply as it comes; hangs up at the end."""
        client = httpx.AsyncClient(base_url=self.gateway.url, timeout=30, trust_env=False, verify=False)
        async with (
            client,
            client.stream("POST", self.path, content=self.exchange.body, headers=self._headers()) as reply,
        ):
            yield reply.aiter_raw()

    def ids_of(self, call: Call) -> tuple[str, ...]:
        """Those under which the worker has a call."""
        format = self._asked.model.format
        return format.project(format.parse(call.body, call.headers)).ids

    def under_its_own_ids(self, call: Call) -> Answer:
        """What the engine answers to the exchange's request under the ids of ``call``."""
        pieces = (respelled(event, self.ids, self.ids_of(call)) for event in self.exchange.stream)
        return Answer(self.exchange.stream_head, tuple(pieces))

    def aborts(self) -> int:
        """How many calls it takes to stop the exchange at its engine."""
        model = self._asked.model
        return len(model.format.abort(model.worker, self._asked.request, self._asked.ids))

    async def left(self, call: Call) -> None:
        """Return once the worker has seen its peer hang up on ``call``."""
        async with asyncio.timeout(10):
            await call.left.wait()

    async def aborted(self) -> None:
        """Return once the worker has heard all of them."""
        await until(lambda: len(self.worker.others) == self.aborts())

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [JSON, *(line for line in self.exchange.headers if line[0] != JSON[0])]


class EndpointContract:
    """One subclass per model and path. Needs pytest-asyncio.

    ``probes`` holds the answers, by target, that make the format take a server for a usable worker; the
    others of its questions get a 404, and its ``health`` a 200.
    ``path`` is an endpoint that speaks the format with ``settings`` (fields of Settings); by default the
    format serves ``/generate``.
    """

    model: ClassVar[EngineModel]
    probes: ClassVar[Mapping[str, ProbeReply]]
    path: ClassVar[str] = "/generate"
    settings: ClassVar[Mapping[str, Any]] = {}

    def abort_call(self, public: str) -> bytes:
        """The body of a client's own abort call for one id, where the gateway has a path for such calls."""
        pytest.skip("the gateway has no path for abort calls of this dialect")

    @asynccontextmanager
    async def wire(self, **settings: Any) -> AsyncIterator[Wire]:
        """A gateway in front of a scripted worker."""
        asked = sample(self.model)
        format, prefix = self.model.format, self.model.worker.prefix
        target = format.upstream(asked.request, self.model.worker, asked.ids).target
        answers = {probe: self.probes.get(probe.target, _UNKNOWN) for probe in format.probes}
        if format.health not in answers:
            answers[format.health] = ProbeReply(200, b"")
        answers |= {question: _UNKNOWN for question in format.loads if question not in answers}
        async with ScriptedWorker(target, answers, prefix).running() as worker:
            async with self._rig(f"{format.name}={worker.url}", **settings) as gateway:
                yield Wire(asked, self.path, gateway, worker)

    async def test_stream_comes_back_as_the_worker_sent_it(self) -> None:
        """Request and reply cross the gateway byte for byte."""
        async with self.wire() as wire:
            wire.answer(*wire.exchange.stream)
            reply = await wire.post()
            assert reply.status_code == 200
            assert reply.content == b"".join(wire.exchange.stream)
            expected = header(wire.exchange.stream_head.headers, b"content-type")
            assert reply.headers["content-type"].encode() == expected
            assert [call.body for call in wire.worker.calls] == [wire.exchange.body]

    async def test_whole_reply_comes_back_as_the_worker_sent_it(self) -> None:
        """With a true length."""
        async with self.wire() as wire:
            wire.answer_whole(200, wire.exchange.unary, *wire.exchange.unary_head.headers)
            reply = await wire.post()
            assert (reply.status_code, reply.content) == (200, wire.exchange.unary)
            assert reply.headers["content-length"] == str(len(wire.exchange.unary))

    @pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
    async def test_error_of_the_worker_comes_back_as_it_is(self, status: int) -> None:
        """Status, body, type and Retry-After are the worker's own word, readable or not."""
        async with self.wire() as wire:
            wire.answer_whole(status, b"no {such", (b"content-type", b"text/plain"), (b"retry-after", b"7"))
            reply = await wire.post()
            assert (reply.status_code, reply.content) == (status, b"no {such")
            assert (reply.headers["content-type"], reply.headers["retry-after"]) == ("text/plain", "7")

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
    async def test_body_that_is_no_request_is_refused_in_the_dialect(self, body: bytes) -> None:
        """And no worker sees it."""
        async with self.wire() as wire:
            self._assert_dialect(await wire.post(body), InvalidRequest("m"))
            assert not wire.worker.calls

    async def test_body_over_the_limit_is_refused_in_the_dialect(self) -> None:
        """A 413, and no worker sees it."""
        async with self.wire(body_limit_mb=1) as wire:
            self._assert_dialect(await wire.post(b" " * (1024 * 1024 + 1)), RequestTooLarge("m"))
            assert not wire.worker.calls

    async def test_fleet_without_a_worker_is_told_in_the_dialect(self) -> None:
        """A 503 that says when to try again."""
        async with self._rig() as gateway:
            wire = Wire(sample(self.model), self.path, gateway, ScriptedWorker(b"", {}))
            self._assert_dialect(await wire.post(), NoWorker("m"))

    async def test_whole_reply_that_cannot_be_read_is_a_failure_in_the_dialect(self) -> None:
        """Nothing has left yet, so it is a 502; the engine is told to stop."""
        async with self.wire() as wire:
            wire.answer_whole(200, b'{"broken', *wire.exchange.unary_head.headers)
            self._assert_dialect(await wire.post(), UpstreamMalformed("m"))
            await wire.aborted()

    async def test_stream_that_breaks_off_never_looks_whole(self) -> None:
        """What came stays, and then the dialect's own word for a failure, or a visible cut."""
        async with self.wire() as wire:
            first = wire.exchange.stream[0]
            wire.answer(first, end=End.CUT)
            try:
                reply = await wire.post()
            except httpx.RemoteProtocolError:
                return
            assert reply.content.startswith(first)
            assert len(reply.content) > len(first)
            assert reply.content != b"".join(wire.exchange.stream)

    async def test_event_is_passed_on_and_leaving_stops_the_worker(self) -> None:
        """The first event arrives while the worker is silent; the silence ends when the client leaves."""
        async with self.wire() as wire:
            wire.answer(wire.exchange.stream[0], end=End.SILENCE)
            async with wire.open() as pieces:
                assert await anext(pieces) == wire.exchange.stream[0]
            await wire.left(wire.worker.calls[0])
            await wire.aborted()

    async def test_same_id_twice_in_flight_is_isolated(self) -> None:
        """The second has an id of its own at the worker, and both their client's; each ends by itself."""
        async with self.wire() as wire:
            wire.answer(wire.exchange.stream[0], end=End.SILENCE)
            wire.worker.answers.append(wire.under_its_own_ids)
            async with wire.open() as pieces:
                await anext(pieces)
                reply = await wire.post()
                assert reply.content == b"".join(wire.exchange.stream)
                first, second = wire.worker.calls
                assert wire.ids_of(first) == wire.ids != wire.ids_of(second)
                assert not first.left.is_set() and not wire.worker.others

    async def test_abort_call_reaches_the_worker_that_has_the_id(self) -> None:
        """Spelled as the engine wants it, for exactly that exchange."""
        self.abort_call("")
        for path in self.model.format.routes.aborts:
            async with self.wire() as wire:
                wire.answer(wire.exchange.stream[0], end=End.SILENCE)
                async with wire.open() as pieces:
                    await anext(pieces)
                    sent = self.abort_call(wire.ids[0])
                    reply = await wire.gateway.client.post(path, content=sent, headers=[JSON])
                    assert reply.status_code == 200, reply.text
                    # The client is still there: it is the call that the worker has heard.
                    assert len(wire.worker.others) == wire.aborts()

    async def test_every_request_is_counted_once(self) -> None:
        """One that went well, one that failed, one that was refused."""
        async with self.wire() as wire:
            wire.answer(*wire.exchange.stream)
            wire.answer_whole(503, b"{}", JSON)
            for body in (None, None, b"{"):
                await wire.post(body)
            lines = (await wire.gateway.client.get("/metrics")).text.splitlines()
            counts = [line for line in lines if line.startswith("dynamo_frontend_requests_total{")]
            assert sum(float(line.rpartition(" ")[2]) for line in counts) == 3
            assert sum('status="success"' in line for line in counts) == 1

    @asynccontextmanager
    async def _rig(self, *workers: str, **settings: Any) -> AsyncIterator[Rig]:
        chosen = {"generate_format": self.model.format.name, **self.settings, **settings}
        async with rig(*workers, **chosen) as gateway:
            yield gateway

    def _assert_dialect(self, reply: httpx.Response, error: GatewayError) -> None:
        """The reply is how the format tells of such an error, but for the message."""
        expected = self.model.format.render(error)
        assert reply.status_code == expected.status, reply.text
        assert reply.headers["content-type"] == "application/json"
        assert _shape(reply.json()) == _shape(json.loads(expected.body))
        for name, value in expected.headers:
            assert reply.headers[name.decode()] == value.decode()


def sample(model: EngineModel) -> Asked:
    """An exchange of the model's that names one usable id, has several events and ends well."""

    def telling(exchange: ModelExchange) -> bool:
        projection = Asked(model, exchange).projection
        ended_well = exchange.unary_head.status == 200 and exchange.ending in (Ending.STOP, Ending.LENGTH)
        alone = projection.samples == len(projection.ids) == 1 and projection.ids_usable
        return ended_well and alone and len(exchange.stream) > 2

    return Asked(model, find(model.exchanges(), telling, settings=_SEARCH))


def _shape(value: Any) -> Any:
    """The keys of a document, all the way down."""
    return {key: _shape(item) for key, item in value.items()} if isinstance(value, dict) else None
