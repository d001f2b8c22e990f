"""The contract suite of an endpoint: a client, a gateway on real sockets, a scripted worker.

Owns: what a client of a generate endpoint sees and what its worker gets, in any dialect. Must never enter: a
dialect, what no client and no worker can see.
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
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending, ReplyHead, header
from gateway.formats.worker_contract import ProbeReply
from gateway.testing.drive import ParsedExchange, respelled
from gateway.testing.model import EngineModel, ModelExchange
from gateway.testing.rig import Rig, rig, until
from gateway.testing.worker import Answer, End, ReceivedRequest, ScriptedWorker

_SEARCH = settings(max_examples=1000, phases=[Phase.generate], database=None, derandomize=True, deadline=None)

JSON = (b"content-type", b"application/json")
_UNKNOWN = ProbeReply(404, b"")


class Wire:
    """The gateway, the worker and the exchange of one test."""

    def __init__(self, parsed: ParsedExchange, path: str, gateway: Rig, worker: ScriptedWorker) -> None:
        self.exchange = parsed.exchange
        self.ids = parsed.projection.ids
        self.path = path
        self.gateway = gateway
        self.worker = worker
        self._asked = parsed

    def reply_stream(self, *pieces: bytes, end: End = End.COMPLETE) -> None:
        """Script the worker's next reply: a stream of ``pieces``."""
        self.worker.answers.append(Answer(self.exchange.stream_head, pieces, end))

    def reply_unary(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Script the worker's next reply: a unary one."""
        self.worker.answers.append(Answer(ReplyHead(status, headers), (body,)))

    async def post(self, body: bytes | None = None) -> httpx.Response:
        """Send the exchange's request, or ``body``, and return the reply."""
        sent = self.exchange.body if body is None else body
        return await self.gateway.client.post(self.path, content=sent, headers=self._headers())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send the exchange's request and yield its reply as it arrives; disconnect at the end."""
        client = httpx.AsyncClient(base_url=self.gateway.url, timeout=30, trust_env=False, verify=False)
        async with (
            client,
            client.stream("POST", self.path, content=self.exchange.body, headers=self._headers()) as reply,
        ):
            yield reply.aiter_raw()

    def ids_of(self, call: ReceivedRequest) -> tuple[str, ...]:
        """Return the ids of a request that the worker got."""
        format = self._asked.model.format
        return format.project(format.parse(call.body, call.headers)).ids

    def answer_for(self, call: ReceivedRequest) -> Answer:
        """Return the engine's reply to the exchange's request under the ids of ``call``."""
        pieces = (respelled(event, self.ids, self.ids_of(call)) for event in self.exchange.stream)
        return Answer(self.exchange.stream_head, tuple(pieces))

    def aborts(self) -> int:
        """Return the number of requests that abort the exchange at its engine."""
        model = self._asked.model
        return len(model.format.abort(model.worker, self._asked.request, self._asked.ids))

    async def disconnected(self, call: ReceivedRequest) -> None:
        """Return once the worker has seen the connection of ``call`` close. Raise TimeoutError after 10 s."""
        async with asyncio.timeout(10):
            await call.disconnected.wait()

    async def aborted(self) -> None:
        """Return once the worker has got all requests that abort the exchange."""
        await until(lambda: len(self.worker.others) == self.aborts())

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [JSON, *(line for line in self.exchange.headers if line[0] != JSON[0])]


class EndpointContract:
    """The contract suite of one endpoint. Subclass it once per model and path. Needs pytest-asyncio.

    ``probes`` are the answers, by target, with which the format identifies a usable worker; the other probes
    get a 404, and ``health`` a 200. ``path`` is an endpoint of the format under ``settings`` (fields of
    Settings); by default the format serves ``/generate``.
    """

    model: ClassVar[EngineModel]
    probes: ClassVar[Mapping[str, ProbeReply]]
    path: ClassVar[str] = "/generate"
    settings: ClassVar[Mapping[str, Any]] = {}

    @property
    def host(self) -> AnyFormat:
        """Return the format that identifies the endpoint's workers."""
        return self.model.format

    def abort_call(self, public: str) -> bytes:
        """Return the body of a client's abort call for one id. Define it if the format has abort routes."""
        pytest.skip("the format has no abort call")

    @asynccontextmanager
    async def wire(self, **settings: Any) -> AsyncIterator[Wire]:
        """Run a gateway with one scripted worker."""
        parsed = sample(self.model)
        format, prefix = self.host, self.model.worker.prefix
        target = self.model.format.upstream(parsed.request, self.model.worker, parsed.ids).target
        answers = {probe: self.probes.get(probe.target, _UNKNOWN) for probe in format.probes}
        if format.health not in answers:
            answers[format.health] = ProbeReply(200, b"")
        further = (*format.details, *format.loads)
        answers |= {request: self.probes.get(request.target, _UNKNOWN) for request in further}
        async with ScriptedWorker(target, answers, prefix).running() as worker:
            async with self._rig(f"{format.name}={worker.url}", **settings) as gateway:
                yield Wire(parsed, self.path, gateway, worker)

    async def test_stream_comes_back_as_the_worker_sent_it(self) -> None:
        """Request and reply cross the gateway byte for byte."""
        async with self.wire() as wire:
            wire.reply_stream(*wire.exchange.stream)
            reply = await wire.post()
            assert reply.status_code == 200
            assert reply.content == b"".join(wire.exchange.stream)
            expected = header(wire.exchange.stream_head.headers, b"content-type")
            assert reply.headers["content-type"].encode() == expected
            assert [call.body for call in wire.worker.calls] == [wire.exchange.body]

    async def test_unary_reply_comes_back_as_the_worker_sent_it(self) -> None:
        """With a correct Content-Length."""
        async with self.wire() as wire:
            wire.reply_unary(200, wire.exchange.unary, *wire.exchange.unary_head.headers)
            reply = await wire.post()
            assert (reply.status_code, reply.content) == (200, wire.exchange.unary)
            assert reply.headers["content-length"] == str(len(wire.exchange.unary))

    @pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
    async def test_error_of_the_worker_comes_back_as_it_is(self, status: int) -> None:
        """Status, body, content type and Retry-After are the worker's, whatever the body is."""
        async with self.wire() as wire:
            wire.reply_unary(status, b"no {such", (b"content-type", b"text/plain"), (b"retry-after", b"7"))
            reply = await wire.post()
            assert (reply.status_code, reply.content) == (status, b"no {such")
            assert (reply.headers["content-type"], reply.headers["retry-after"]) == ("text/plain", "7")

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
    async def test_body_that_is_no_request_is_refused_in_the_dialect(self, body: bytes) -> None:
        """No worker gets it."""
        async with self.wire() as wire:
            self._assert_dialect(await wire.post(body), InvalidRequest("m"))
            assert not wire.worker.calls

    async def test_body_over_the_limit_is_refused_in_the_dialect(self) -> None:
        """Status 413; no worker gets it."""
        async with self.wire(body_limit_mb=1) as wire:
            self._assert_dialect(await wire.post(b" " * (1024 * 1024 + 1)), RequestTooLarge("m"))
            assert not wire.worker.calls

    async def test_fleet_without_a_worker_is_refused_in_the_dialect(self) -> None:
        """Status 503 with Retry-After."""
        async with self._rig() as gateway:
            wire = Wire(sample(self.model), self.path, gateway, ScriptedWorker(b"", {}))
            self._assert_dialect(await wire.post(), NoWorker("m"))

    async def test_malformed_unary_reply_is_a_failure_in_the_dialect(self) -> None:
        """Nothing was sent yet, so it is a 502; the exchange is aborted at the engine."""
        async with self.wire() as wire:
            wire.reply_unary(200, b'{"broken', *wire.exchange.unary_head.headers)
            self._assert_dialect(await wire.post(), UpstreamMalformed("m"))
            await wire.aborted()

    async def test_truncated_stream_never_looks_complete(self) -> None:
        """The received events are followed by the dialect's in-band error, or the connection breaks."""
        async with self.wire() as wire:
            first = wire.exchange.stream[0]
            wire.reply_stream(first, end=End.CUT)
            try:
                reply = await wire.post()
            except httpx.RemoteProtocolError:
                return
            assert reply.content.startswith(first)
            assert len(reply.content) > len(first)
            assert reply.content != b"".join(wire.exchange.stream)

    async def test_event_is_sent_at_once_and_a_disconnect_stops_the_worker(self) -> None:
        """The first event arrives while the worker is silent; the silence ends at the client's disconnect."""
        async with self.wire() as wire:
            wire.reply_stream(wire.exchange.stream[0], end=End.SILENCE)
            async with wire.open() as pieces:
                assert await anext(pieces) == wire.exchange.stream[0]
            await wire.disconnected(wire.worker.calls[0])
            await wire.aborted()

    async def test_same_id_twice_in_flight_is_isolated(self) -> None:
        """The second request has another id at the worker; both clients see their own."""
        async with self.wire() as wire:
            wire.reply_stream(wire.exchange.stream[0], end=End.SILENCE)
            wire.worker.answers.append(wire.answer_for)
            async with wire.open() as pieces:
                await anext(pieces)
                reply = await wire.post()
                assert reply.content == b"".join(wire.exchange.stream)
                first, second = wire.worker.calls
                assert wire.ids_of(first) == wire.ids != wire.ids_of(second)
                assert not first.disconnected.is_set() and not wire.worker.others

    async def test_abort_call_reaches_the_worker_that_runs_the_request(self) -> None:
        """In the engine's own form, for exactly that exchange, at every abort path of the format."""
        self.abort_call("")
        for path in self.model.format.routes.aborts:
            async with self.wire() as wire:
                wire.reply_stream(wire.exchange.stream[0], end=End.SILENCE)
                async with wire.open() as pieces:
                    await anext(pieces)
                    sent = self.abort_call(wire.ids[0])
                    reply = await wire.gateway.client.post(path, content=sent, headers=[JSON])
                    assert reply.status_code == 200, reply.text
                    # The client is still connected, so these requests come from the abort call.
                    assert len(wire.worker.others) == wire.aborts()

    async def test_every_request_is_counted_once(self) -> None:
        """A success, a failure and a refusal."""
        async with self.wire() as wire:
            wire.reply_stream(*wire.exchange.stream)
            wire.reply_unary(503, b"{}", JSON)
            for body in (None, None, b"{"):
                await wire.post(body)
            lines = (await wire.gateway.client.get("/metrics")).text.splitlines()
            counts = [line for line in lines if line.startswith("dynamo_frontend_requests_total{")]
            assert sum(float(line.rpartition(" ")[2]) for line in counts) == 3
            assert sum('status="success"' in line for line in counts) == 1

    @asynccontextmanager
    async def _rig(self, *workers: str, **settings: Any) -> AsyncIterator[Rig]:
        chosen = {"generate_format": self.host.name, **self.settings, **settings}
        async with rig(*workers, **chosen) as gateway:
            yield gateway

    def _assert_dialect(self, reply: httpx.Response, error: GatewayError) -> None:
        """Assert that the reply is the format's rendering of ``error``, except for the message."""
        expected = self.model.format.render(error)
        assert reply.status_code == expected.status, reply.text
        assert reply.headers["content-type"] == "application/json"
        assert _shape(reply.json()) == _shape(json.loads(expected.body))
        for name, value in expected.headers:
            assert reply.headers[name.decode()] == value.decode()


def sample(model: EngineModel) -> ParsedExchange:
    """Return an exchange of the model that has one usable id, more than two events, and succeeds."""

    def suitable(exchange: ModelExchange) -> bool:
        projection = ParsedExchange(model, exchange).projection
        succeeds = exchange.unary_head.status == 200 and exchange.ending in (Ending.STOP, Ending.LENGTH)
        alone = projection.samples == len(projection.ids) == 1 and projection.ids_usable
        return succeeds and alone and len(exchange.stream) > 2

    return ParsedExchange(model, find(model.exchanges(), suitable, settings=_SEARCH))


def _shape(value: Any) -> Any:
    """Return the keys of a document at all levels."""
    return {key: _shape(item) for key, item in value.items()} if isinstance(value, dict) else None
