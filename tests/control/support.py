"""A control plane with fake views, and a client for it."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar, cast
from unittest.mock import AsyncMock

import httpx
from fastapi import FastAPI

from gateway.catalog import Endpoint
from gateway.control.aborts import AbortedOn
from gateway.control.app import control_app
from gateway.control.views import Views
from gateway.errors import GatewayError, InvalidRequest
from gateway.fleet.client import WorkerCalls
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat, BaseFormat
from gateway.formats.contract import ErrorReply
from gateway.formats.optional import AbortTarget
from gateway.formats.registry import load_formats
from gateway.formats.routes import Routes
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import LeastInFlight
from gateway.settings import Settings
from gateway.upstream.address import Address
from gateway.upstream.connector import Connector
from tests.support.routes import ROUTES

T = TypeVar("T")

SCRAPE = "text/plain; version=0.0.4; charset=utf-8"
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
        self.metrics = BaseFormat.metrics
        installed = load_formats()
        self.routes = installed[name].routes if name in installed else Routes()

    def aborted_ids(self, body: bytes) -> AbortTarget:
        if not body:
            raise InvalidRequest("nothing is named")
        return AbortTarget(everything=body == b"all", ids=tuple(body.decode().split(",")))

    def render(self, error: GatewayError) -> ErrorReply:
        body = b'{"problem":"%s"}' % error.message.encode()
        return ErrorReply(error.status, [(b"content-type", b"application/json")], body)

    def openapi(self) -> Mapping[str, Any]:
        setting = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Setting"}}}
        schema = {
            "$defs": {"Setting": setting},
            "type": "object",
            "properties": {"setting": {"$ref": "#/$defs/Setting"}},
        }
        body = {"content": {"application/json": {"schema": schema, "example": {"setting": "<b>"}}}}
        texts = {"summary": "Generate", "description": "Generates <things>"}
        return {**texts, "requestBody": body, "responses": {"200": {"description": "ok", **body}}}


@dataclass
class World:
    """The state that the views show; tests change it. Changes of workers are tested on a real gateway."""

    fleet: Fleet = field(default_factory=lambda: Fleet(LeastInFlight(Random(0)), Connector(5.0)))
    leaving: bool = False
    aborted: list[tuple[AbortTarget, str]] = field(default_factory=list)
    results: Sequence[AbortedOn] = ()

    async def describe(self, worker: Worker) -> None:
        """Nothing has changed."""

    async def run_control_call(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[AbortedOn]:
        self.aborted.append((target, format.name))
        return self.results

    def add(self, url: str, state: WorkerState = WorkerState.READY, **facts: Any) -> Worker:
        """Add a worker of the fake format; ``facts`` are members of its info."""
        worker = Worker(Address.parse(url))
        worker.state = state
        worker.reason = "" if state is WorkerState.READY else "some reason"
        described = {"engine": "eng", "capability": "cap", "usable": True, "models": ("m",), **facts}
        worker.infos = {"sglang": WorkerInfo(**described)}
        self.fleet.add(worker)
        return worker


def endpoint(path: str = "/generate", **format: str) -> Endpoint:
    return Endpoint(path, ("POST", "PUT"), cast(AnyFormat, FakeFormat(**format)))


def others_of(elsewhere: Mapping[str, int] = MappingProxyType({})) -> Any:
    """The other processes of the gateway: one of two serves, both have served and have a worker."""
    state = SimpleNamespace(wanted=2, serving=1, settled=True, usable=True)
    metrics = AsyncMock(return_value=(b"of_all 1\n", "text/plain"))
    return SimpleNamespace(state=state, loads=AsyncMock(return_value=elsewhere), metrics=metrics)


def app_of(world: World, *endpoints: Endpoint, others: Any = None, **settings: Any) -> FastAPI:
    view = cast(Any, world)
    registration = cast(Any, world.fleet)
    metrics = (b"a_metric 1\n", SCRAPE)
    calls = WorkerCalls(lambda worker: None)
    views = Views(world.fleet, view, view, lambda: metrics, registration, view, world.describe, calls, others)
    return control_app(Settings(**settings), endpoints or (endpoint(),), views, ROUTES)


def client(world: World, *endpoints: Endpoint, **given: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app_of(world, *endpoints, **given))
    return httpx.AsyncClient(transport=transport, base_url="http://gateway", verify=False)
