"""The control plane as a whole: no route, wrong method, documents, paths taken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.control.app import reserved_paths
from gateway.settings import Settings, SettingsError
from gateway.wiring.endpoints import serving
from tests.control.support import World, app_of, client, endpoint
from tests.support.calls import counted_calls
from tests.support.generate import KINDS
from tests.support.routes import ROUTES


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        *((method, "/foo", None) for method in ("GET", "POST", "PUT", "DELETE")),
        ("GET", "/health/", None),
        ("POST", "/health", "GET, HEAD"),
        ("OPTIONS", "/workers", "GET, HEAD, POST"),
        ("POST", "/docs", "GET, HEAD"),
        ("GET", "/abort_request", "POST"),
    ],
)
async def test_unknown_route_is_a_flat_error(method: str, path: str, allowed: str | None) -> None:
    """A wrong method gets those there are. A path with an extra slash is not redirected."""
    async with client(World()) as http:
        reply = await http.request(method, path)
    code, name = (405, "Method Not Allowed") if allowed else (404, "Not Found")
    message = "Method not allowed" if allowed else "Route not found"
    methods = f"; its methods are {allowed}" if allowed else ""
    assert (reply.status_code, reply.headers.get("allow")) == (code, allowed)
    assert reply.json() == {"message": f"{message}: {method} {path}{methods}", "type": name, "code": code}


async def test_every_route_of_the_gateway_with_a_get_has_a_head() -> None:
    async with client(World()) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
        own = [path for path in paths if path not in ROUTES.calls and "events" not in path]
        gets = [path for path in own if "get" in paths[path]]
        for path in ("/docs", "/openapi.json", *gets):
            assert (await http.head(path)).status_code != 405, path
        assert len(gets) > 10


async def test_disconnect_during_an_abort_call_is_no_error() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/abort_request", "headers": [], "query_string": b""}
    await app_of(World())(scope, receive, send)
    assert sent[0]["status"] == 499


def test_reserved_paths_contain_every_route() -> None:
    app = app_of(World(), endpoint(), endpoint("/o", name="vllm"))
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
    assert schema["properties"]["setting"] == {"$ref": "#/components/schemas/sglang.Setting"}
    assert "$defs" not in schema


async def test_document_of_both_formats_is_complete() -> None:
    """Every reference resolves, ids are unique, both endpoints show schemas and an example."""
    async with client(World(), *serving(Settings(), None).generate) as http:
        reply = await http.get("/openapi.json")
    document = reply.json()
    references = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', reply.text))
    assert references <= set(document["components"]["schemas"])
    assert '"$ref":"#/$defs' not in reply.text
    ids = [op["operationId"] for methods in document["paths"].values() for op in methods.values()]
    assert len(set(ids)) == len(ids)
    followed = document["paths"]["/workers/events"]["get"]["responses"]
    assert (list(followed["200"]["content"]), set(followed)) == (["text/event-stream"], {"200", "503"})
    for path in KINDS.values():
        operation = document["paths"][path]["post"]
        request = operation["requestBody"]["content"]["application/json"]
        assert request["schema"]
        assert request.get("examples") or request.get("example")
        assert operation["responses"]["200"]["content"]["application/json"]["schema"]


async def test_docs_page_escapes_what_it_quotes_and_loads_nothing_from_other_servers() -> None:
    async with client(World()) as http:
        reply = await http.get("/docs")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    page = reply.text
    assert "//" not in page.replace("http://gateway", "") and "<script" not in page
    assert "/generate" in page and "Generates &lt;things&gt;" in page
    assert "<b>" not in page and "&lt;b&gt;" in page


async def test_replies_take_a_bounded_number_of_calls_for_each_worker() -> None:
    world = World()
    paths = ("/health", "/workers", "/ready", "/live")
    async with client(world) as http:
        for path in paths:
            await http.get(path)  # the first request of a route imports and caches
        calls: dict[str, list[int]] = {path: [] for path in paths}
        for size in (0, 512):
            for number in range(size):
                world.add(f"http://10.0.{number // 256}.{number % 256}:3000")
            for path in paths:
                with counted_calls() as counter:
                    assert (await http.get(path)).status_code == (200 if size or path != "/ready" else 503)
                calls[path].append(counter.calls)
    for path, (empty, large) in calls.items():
        assert large - empty < 60 * 512, path
