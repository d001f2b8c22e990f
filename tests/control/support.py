"""A control plane with fake views, and a client for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import httpx

from gateway.catalog import Endpoint
from gateway.control.app import control_app
from gateway.control.views import Views
from gateway.errors import GatewayError, InvalidRequest
from gateway.fleet.changes import Changes, Followers
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import ErrorReply
from gateway.formats.optional import AbortTarget
from gateway.formats.registry import load_formats
from gateway.formats.routes import Routes
from gateway.formats.worker_contract import WorkerInfo
from gateway.settings import Settings
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address
from tests.support.routes import ROUTES

T = TypeVar("T")

GENERATE = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
#: Replies that Python parses as JSON and other parsers do not, and how the gateway shows them.
NONSTANDARD_JSON = [
    (b'{"m":"\\ud800"}', {"m": "\ud800"}),
    (b'{"m":1e999}', {"m": "1e999"}),
    (b'{"m":NaN}', {"m": "NaN"}),
    (b'{"m":-Infinity}', {"m": "-Infinity"}),
    (b'{"m":%b}' % (b"9" * 4300), {"m": "9" * 4300}),
]


class FakeFormat:
    """The parts of a format that the control plane uses; its abort paths are those of the format ``name``."""

    def __init__(self, name: str = "sglang", capability: str = "cap") -> None:
        self.name = name
        self.capability = capability
        installed = load_formats()
        self.routes = installed[name].routes if name in installed else Routes()

    def aborted_ids(self, body: bytes) -> AbortTarget:
        if not body:
            raise InvalidRequest("nothing is named")
        return AbortTarget(everything=body == b"all", ids=tuple(body.decode().split(",")))

    def render(self, error: GatewayError) -> ErrorReply:
        return ErrorReply(
            error.status,
            [(b"content-type", b"application/json")],
            b'{"problem":"%s"}' % error.message.encode(),
        )

    def openapi(self) -> Mapping[str, Any]:
        schema = {
            "$defs": {"Knob": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Knob"}}}},
            "type": "object",
            "properties": {"knob": {"$ref": "#/$defs/Knob"}},
        }
        body = {"content": {"application/json": {"schema": schema, "example": {"knob": "<b>"}}}}
        return {
            "summary": "Generate",
            "description": "Generates <things>",
            "requestBody": body,
            "responses": {"200": {"description": "ok", **body}},
        }


@dataclass(frozen=True)
class Result:
    worker: str
    aborted: int
    error: str | None = None


@dataclass
class World:
    """The state that the views show; tests change it."""

    workers: list[Worker] = field(default_factory=list)
    leaving: bool = False
    draining: bool = False
    aborted: list[tuple[AbortTarget, str]] = field(default_factory=list)
    results: Sequence[Result] = ()
    followers: Followers = field(default_factory=Followers)

    def usable(self, capability: str) -> Sequence[Worker]:
        return [w for w in self.workers if w.state is WorkerState.READY and w.offers(capability)]

    def models(self) -> Mapping[str, WorkerInfo]:
        return {
            model: info
            for worker in self.workers
            if worker.state is WorkerState.READY
            for info in worker.infos.values()
            for model in info.models
        }

    def follow(self) -> AbstractContextManager[Changes]:
        return self.followers.follow()

    async def run_control_call(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[Result]:
        self.aborted.append((target, format.name))
        return self.results

    def add(self, url: str, state: WorkerState = WorkerState.READY, **facts: Any) -> Worker:
        """Add a worker of the fake format; ``facts`` are members of its info."""
        worker = Worker(Address.parse(url))
        worker.state = state
        worker.reason = "" if state is WorkerState.READY else "some reason"
        described = {"engine": "eng", "capability": "cap", "usable": True, "models": ("m",), **facts}
        worker.infos = {"sglang": WorkerInfo(**described)}
        self.workers.append(worker)
        return worker


@dataclass
class FakeRegistration:
    """Finds the workers of a world and changes none; tests of changes use a real gateway."""

    world: World

    def find(self, key: str) -> Worker | None:
        return next((worker for worker in self.world.workers if key in (worker.url, worker.id)), None)

    async def add(self, record: WorkerRecord) -> Worker:
        raise AssertionError(record)

    async def change(self, worker: Worker) -> None:
        raise AssertionError(worker)

    remove = cordon = uncordon = change

    async def forget(self, url: str) -> bool:
        raise AssertionError(url)

    async def pause(
        self, workers: Collection[Worker], kind: str, parts: Collection[str]
    ) -> Mapping[Worker, frozenset[str]]:
        raise AssertionError(workers)

    async def resume(self, worker: Worker, kind: str, parts: Collection[str], *, every: bool = False) -> None:
        raise AssertionError(worker)


def endpoint(path: str = "/generate", **format: str) -> Endpoint:
    return Endpoint(path, ("POST", "PUT"), cast(AnyFormat, FakeFormat(**format)))


@dataclass
class Others:
    """The other processes of the gateway; tests change their state."""

    wanted: int = 2
    serving: int = 2
    settled: bool = True
    usable: bool = True
    elsewhere: dict[str, int] = field(default_factory=dict)
    scrape: tuple[bytes, str] | None = (b"of_all 1\n", "text/plain")

    @property
    def state(self) -> Others:
        return self

    async def loads(self) -> Mapping[str, int]:
        await asyncio.sleep(0)
        return self.elsewhere

    async def metrics(self) -> tuple[bytes, str] | None:
        await asyncio.sleep(0)
        return self.scrape


def client(
    world: World, *endpoints: Endpoint, others: Others | None = None, **settings: Any
) -> httpx.AsyncClient:
    text = "text/plain; version=0.0.4; charset=utf-8"
    registration = FakeRegistration(world)
    views = Views(world, world, world, lambda: (b"a_metric 1\n", text), registration, registration, others)
    app = control_app(Settings(**settings), endpoints or (endpoint(),), views, ROUTES)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", verify=False)
