"""Keys at a gateway on a real socket: every route, every dialect, and no key in any output."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.control import information, sessions
from gateway.security import file_changes
from gateway.settings import load_settings
from gateway.sim import Reply, SimConfig, SimServer
from gateway.wiring.app import create_app
from tests.prefork.running import ask
from tests.security.certificates import Authority
from tests.security.secured import request_of
from tests.support.gateway import RawClient, eventually, generates, rig
from tests.support.generate import KINDS, body_of
from tests.support.processes import free_port, line_with, running
from tests.support.routes import RELAYED, ROUTES

API, ADMIN = "key-of-clients", "key-of-admins"
BOTH = {"api_key": API, "admin_api_key": ADMIN}


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


PROBES = ("/", "/health", "/live", "/liveness", "/ready", "/readiness", "/health_generate")
OPEN = (*PROBES, "/docs", "/openapi.json")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_generate_route_requires_a_key_in_its_dialect(kind: str, stream: bool) -> None:
    """Without a valid key nothing reaches a worker; a valid one is not forwarded."""
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, **BOTH) as gateway:
        path, body = KINDS[kind], body_of(kind, 3, stream)
        for headers in ({}, _bearer("wrong"), {"authorization": API}, {"x-goog-api-key": API}):
            refused = await gateway.client.post(path, json=body, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            error = refused.json()["error"]
            assert "key" in error["message"]
            if kind == "vllm":
                assert (error["type"], error["code"]) == ("AuthenticationError", 401)
        assert not generates(sim)
        for key in (API, ADMIN):
            for headers in (_bearer(key), {"x-api-key": key}, {"api-key": key, **_bearer("of-the-engine")}):
                headers |= {"x-goog-api-key": ADMIN}
                assert (await gateway.client.post(path, json=body, headers=headers)).status_code == 200
        assert len(generates(sim)) == 6
        sent = [value for arrival in generates(sim) for _, value in arrival.headers]
        assert sent.count(b"Bearer of-the-engine") == 2
        assert not any(key.encode() in value for value in sent for key in (API, ADMIN))


async def test_request_is_refused_before_its_body_is_read_and_the_connection_stays_open() -> None:
    """Also with Expect: 100-continue. On the same connection the client may retry with a key."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, api_key=API) as gateway:
        client = await RawClient.connect(gateway.port)
        client.writer.write(
            b"POST /generate HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: 999999999\r\n\r\n"
        )
        assert (await client.head()).startswith(b"HTTP/1.1 401 ")
        client.leave()
        client = await RawClient.connect(gateway.port)
        assert (await ask(client, "/generate", request_of(), "POST"))[0] == 401
        client.request("/generate", request_of(), headers=(("authorization", f"Bearer {API}"),))
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        client.leave()


@pytest.mark.parametrize(
    "target", ["/generate?x=1", "/%67enerate", "http://else/generate", "//generate", "/generate/"]
)
async def test_no_spelling_of_a_path_avoids_the_key(target: str) -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **BOTH) as gateway:
        client = await RawClient.connect(gateway.port)
        client.request(target, request_of())
        assert (await client.head()).startswith(b"HTTP/1.1 401 ")
        client.leave()
        assert not generates(sim)


async def test_every_control_route_requires_the_admin_key() -> None:
    """All routes of the OpenAPI document, so new ones as well."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **BOTH) as gateway:
        document = (await gateway.client.get("/openapi.json")).json()
        inference = {"/v1/models", "/v1/models/{model_id}", *KINDS.values(), *RELAYED}
        inference |= {*information.inference_paths(ROUTES), sessions.PATH}
        aborting = {"/abort_request", "/abort_requests", "/inference/v1/abort_requests"}
        tried = 0
        for path, methods in document["paths"].items():
            if path in {*OPEN, *inference, *aborting, "/metrics", "/engine_metrics"}:
                continue
            for method in methods:
                for headers in ({}, _bearer(API)):
                    reply = await gateway.client.request(method, path, headers=headers)
                    assert reply.status_code == 401, (method, path)
                    assert reply.json()["error"]["code"] == "unauthorized"
                    assert reply.headers["www-authenticate"] == "Bearer"
                    tried += 1
        assert tried > 10
        assert (await gateway.client.get("/workers", headers=_bearer(ADMIN))).status_code == 200
        assert (await gateway.client.get("/nothing")).status_code == 401
        assert (await gateway.client.get("/nothing", headers=_bearer(ADMIN))).status_code == 404
        assert gateway.app.fleet.workers


async def test_probes_of_load_balancers_need_no_key_and_reveal_nothing_of_the_fleet() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **BOTH) as gateway:
        for path in OPEN:
            for method in ("GET", "HEAD") if path in PROBES else ("GET",):
                assert (await gateway.client.request(method, path)).status_code == 200, path
        assert (await gateway.client.get("/health")).json()["instances"] == []
        assert (await gateway.client.get("/health", headers=_bearer(API))).json()["instances"] == []
        shown = (await gateway.client.get("/health", headers=_bearer(ADMIN))).json()["instances"]
        assert [one["url"] for one in shown] == [sim.url]


async def test_admin_key_alone_leaves_inference_open_and_forwards_other_keys() -> None:
    """But never the admin key, also not in a control call."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, admin_api_key=ADMIN) as gateway:
        for key in ("of-the-engine", ADMIN):
            reply = await gateway.client.post("/generate", json=body_of("sglang"), headers=_bearer(key))
            assert reply.status_code == 200
        both = {**_bearer(ADMIN), "x-api-key": ADMIN}
        assert (await gateway.client.post("/flush_cache", headers=both)).status_code == 200
        sent = [*generates(sim), *(one for one in sim.all_requests if one.target == b"/flush_cache")]
        keys = [dict(arrival.headers).get(b"authorization") for arrival in sent]
        assert keys == [b"Bearer of-the-engine", None, None]
        assert all(ADMIN.encode() not in value for arrival in sent for _, value in arrival.headers)


async def test_abort_by_id_requires_an_api_key_and_of_all_an_admin_key() -> None:
    """Errors are in the format of the dialect."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **BOTH) as gateway:
        for body, headers, status in (
            (b'{"rid":"r"}', {}, 401),
            (b'{"rid":"r"}', _bearer(API), 200),
            (b'{"abort_all":true}', _bearer(API), 401),
            (b'{"abort_all":true}', _bearer(ADMIN), 200),
        ):
            reply = await gateway.client.post("/abort_request", content=body, headers=headers)
            assert reply.status_code == status, (body, headers)
            if status == 401:
                assert list(reply.json()["error"]) == ["message"]
                assert reply.headers["www-authenticate"] == "Bearer"
        reply = await gateway.client.post("/inference/v1/abort_requests", json={"request_ids": ["r"]})
        assert reply.json()["error"]["type"] == "AuthenticationError"


async def test_refusals_are_counted_and_no_output_contains_a_key(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with (
        SimServer("sglang", SimConfig(api_key="key-of-the-engine")) as sim,
        rig(sim.url, **BOTH, worker_api_key="key-of-the-engine", access_log=True) as gateway,
    ):
        seen = []
        for key in (API, ADMIN, "key-of-nobody"):
            reply = await gateway.client.post("/generate", json=body_of("sglang"), headers=_bearer(key))
            # The key of the worker replaces that of the client.
            assert reply.status_code == (401 if key == "key-of-nobody" else 200)
            seen.append(reply.text + str(reply.headers))
            for path in ("/workers", "/list_workers", "/metrics", "/health", "/ready", "/v1/models"):
                reply = await gateway.client.get(path, headers=_bearer(key))
                seen.append(reply.text + str(reply.headers))
        metrics = (await gateway.client.get("/metrics", headers=_bearer(ADMIN))).text
    for scope, count in (("inference", 2), ("control", 4), ("metrics", 1)):
        assert f'dynamo_frontend_requests_unauthorized_total{{realm="{scope}"}} {count}' in metrics
    assert 'reason="request.unauthorized"} 1' in metrics
    out, err = capfd.readouterr()
    assert '"status":401' in out.replace(" ", "") and '"error":"unauthorized"' in out.replace(" ", "")
    assert "key-of" not in out + err + caplog.text + metrics + "".join(seen)


async def test_keys_are_rotated_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_changes, "INTERVAL", 0.02)
    file = tmp_path / "keys"
    file.write_text("old\n")
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, api_key_file=str(file)) as gateway:

        async def works(key: str, expected: bool = True) -> bool:
            reply = await gateway.client.post("/generate", json=body_of("sglang"), headers=_bearer(key))
            return (reply.status_code == 200) is expected

        assert await works("old") and not await works("new")
        file.write_text("old\nnew\n")
        await eventually(lambda: works("new"))
        assert await works("old")
        file.write_text("new\n")
        await eventually(lambda: works("old", False))
        file.unlink()
        assert await works("new")


async def test_keys_are_required_behind_any_asgi_server() -> None:
    transport = httpx.ASGITransport(create_app(load_settings(BOTH)))
    async with httpx.AsyncClient(transport=transport, base_url="http://g") as client:
        for method, path in (("POST", "/generate"), ("GET", "/workers"), ("DELETE", "/workers/x")):
            assert (await client.request(method, path)).status_code == 401


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/tokenize", "/model_info", "/v1/loads", "/finish_session"]
)
async def test_relayed_and_information_routes_require_an_api_key(path: str) -> None:
    method = "GET" if path in ROUTES.paths else "POST"
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **BOTH) as gateway:
        sim.behave(Reply(body=b"{}"), path=path, times=9)
        for headers, status in (({}, 401), (_bearer(API), 200), (_bearer(ADMIN), 200)):
            reply = await gateway.client.request(method, path, headers=headers)
            assert reply.status_code == status, headers


# -- in a process of its own


def test_start_warns_of_workers_that_are_not_checked_and_shows_the_url(authority: Authority) -> None:
    certificate, key = authority.files()
    flags = ("--worker-tls-insecure", "--ssl-certfile", certificate, "--ssl-keyfile", key)
    with running("serve", "--port", str(free_port()), "--host", "127.0.0.1", *flags) as process:
        line_with(process.stderr, "CERTIFICATES OF WORKERS ARE NOT CHECKED")
        line_with(process.stderr, "listening on https://127.0.0.1:")


def test_debug_log_contains_no_key() -> None:
    flags = ("--host", "127.0.0.1", "--log-level", "debug", "--api-key", "key-of-clients")
    with running("serve", "--port", str(free_port()), *flags) as process:
        line_with(process.stderr, "listening on")
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert "key-of-clients" not in out + err
