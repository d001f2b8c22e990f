"""The control plane as a whole: no route, wrong method, documents, paths taken."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from gateway.control.app import control_app, reserved_paths
from gateway.control.views import Views
from gateway.settings import Settings, SettingsError
from gateway.wiring.endpoints import serving
from tests.control.support import FakeRegistration, World, client, endpoint
from tests.support.calls import counted_calls
from tests.support.routes import ROUTES


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_unknown_path_is_a_flat_404_that_names_the_method(method: str) -> None:
    async with client(World()) as http:
        reply = await http.request(method, "/foo")
    assert reply.status_code == 404
    assert reply.json() == {"message": f"Route not found: {method} /foo", "type": "Not Found", "code": 404}


async def test_path_with_an_extra_slash_is_not_redirected() -> None:
    async with client(World()) as http:
        assert (await http.get("/health/")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("POST", "/health", "GET"), ("GET", "/abort_request", "POST")]
)
async def test_wrong_method_is_a_405_with_allow(method: str, path: str, allowed: str) -> None:
    async with client(World()) as http:
        reply = await http.request(method, path)
    assert reply.status_code == 405
    assert reply.headers["allow"] == allowed
    assert reply.json() == {
        "message": f"Method not allowed: {method} {path}",
        "type": "Method Not Allowed",
        "code": 405,
    }


async def test_disconnect_during_an_abort_call_is_no_error() -> None:
    world = World()
    registration = FakeRegistration(world)
    views = Views(world, world, world, lambda: (b"", ""), registration, registration)
    app = control_app(Settings(), [endpoint()], views, ROUTES)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/abort_request", "headers": [], "query_string": b""}
    await app(scope, receive, send)
    assert sent[0]["status"] == 499


def test_reserved_paths_contain_every_route() -> None:
    world = World()
    registration = FakeRegistration(world)
    views = Views(world, world, world, lambda: (b"", ""), registration, registration)
    app = control_app(Settings(), [endpoint(), endpoint("/o", name="vllm")], views, ROUTES)
    documents = {"/docs", "/openapi.json"}
    assert set(app.openapi()["paths"]) - {"/generate", "/o"} | documents == {
        path.replace(":path}", "}") for path in reserved_paths(Settings(), ROUTES)
    }


@pytest.mark.parametrize(
    "moved",
    [
        {"health_path": "/live"},
        {"metrics_path": "/docs"},
        {"models_path": "/ready"},
        {"live_path": "/abort_request"},
    ],
)
def test_path_of_two_routes_is_refused_with_the_name_of_its_setting(moved: dict[str, Any]) -> None:
    (name,) = moved
    variable = "DYN_HTTP_SVC_" + name.upper()
    with pytest.raises(SettingsError, match=variable):
        reserved_paths(Settings(**moved), ROUTES)


async def test_generate_endpoints_are_in_the_openapi_document() -> None:
    async with client(World()) as http:
        document = (await http.get("/openapi.json")).json()
    operations = document["paths"]["/generate"]
    assert sorted(operations) == ["post", "put"]
    assert operations["post"]["operationId"] != operations["put"]["operationId"]
    schema = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["knob"] == {"$ref": "#/components/schemas/sglang.Knob"}
    assert "$defs" not in schema


async def test_every_reference_of_the_document_resolves() -> None:
    endpoints = serving(Settings(), None).generate
    async with client(World(), *endpoints) as http:
        reply = await http.get("/openapi.json")
    document = reply.json()
    references = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', reply.text))
    assert references <= set(document["components"]["schemas"])
    assert '"$ref":"#/$defs' not in reply.text
    ids = [op["operationId"] for methods in document["paths"].values() for op in methods.values()]
    assert len(set(ids)) == len(ids)


async def test_both_generate_endpoints_show_schemas_and_an_example() -> None:
    endpoints = serving(Settings(), None).generate
    async with client(World(), *endpoints) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
    for path in ("/generate", "/inference/v1/generate"):
        operation = paths[path]["post"]
        request = operation["requestBody"]["content"]["application/json"]
        assert request["schema"]
        assert request.get("examples") or request.get("example")
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]


async def test_docs_page_loads_nothing_from_other_servers() -> None:
    async with client(World()) as http:
        reply = await http.get("/docs")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "//" not in re.sub(r"<!doctype html>", "", reply.text.replace("http://gateway", ""))
    assert "<script" not in reply.text


async def test_docs_page_shows_the_endpoint_and_escapes_what_it_quotes() -> None:
    async with client(World()) as http:
        page = (await http.get("/docs")).text
    assert "/generate" in page
    assert "Generates &lt;things&gt;" in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


async def test_replies_take_a_bounded_number_of_calls_for_each_worker() -> None:
    world = World()
    paths = ("/health", "/workers", "/ready", "/live")
    async with client(world) as http:
        for path in paths:
            await http.get(path)  # the first request of a route imports and caches
        calls: dict[str, list[int]] = {path: [] for path in paths}
        for size in (0, 512):
            while len(world.workers) < size:
                number = len(world.workers)
                world.add(f"http://10.0.{number // 256}.{number % 256}:3000")
            for path in paths:
                with counted_calls() as counter:
                    assert (await http.get(path)).status_code == (200 if size or path != "/ready" else 503)
                calls[path].append(counter.calls)
    for path, (empty, large) in calls.items():
        assert large - empty < 60 * 512, path


def test_two_apps_in_a_process_share_nothing() -> None:
    first, second = World(), World()
    first.add("http://a:1")
    clients: list[httpx.AsyncClient] = [client(first), client(second)]

    async def totals() -> list[int]:
        return [(await http.get("/workers")).json()["total"] for http in clients]

    assert asyncio.run(totals()) == [1, 0]
