"""The composition root: a program that embeds the gateway may pass its own list of endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from gateway.catalog import CatalogError, Endpoint
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.settings import Settings
from gateway.sim import SimServer
from gateway.wiring.app import create_app
from tests.support.fleet import called
from tests.support.gateway import rig, serving, until

OWN = (Endpoint("/own/sglang", ("POST",), SGLANG), Endpoint("/also", ("PUT",), SGLANG))


async def test_given_catalog_is_served() -> None:
    """With its paths, methods and formats, and without the default ones."""
    body: dict[str, Any] = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}
    async with SimServer("sglang") as sim:
        settings = Settings(worker=(sim.url,), port=0, access_log=False, probe_interval_secs=0.2)
        app = create_app(settings, catalog=OWN)
        async with (
            serving(app, settings) as url,
            httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client,
        ):
            await until(lambda: bool(app.fleet.usable(SGLANG.capability)))
            for method, path in (("POST", "/own/sglang"), ("PUT", "/also")):
                reply = await client.request(method, path, json=body)
                assert reply.json()["meta_info"]["completion_tokens"] == 2
            assert (await client.post("/also", json=body)).headers["allow"] == "PUT"
            for path in ("/generate", "/inference/v1/generate"):
                assert (await client.post(path, json=body)).status_code == 404
            described = (await client.get("/openapi.json")).json()["paths"]
    assert "post" in described["/own/sglang"] and "put" in described["/also"]
    assert not {"/generate", "/inference/v1/generate"} & described.keys()


@pytest.mark.parametrize(
    ("switch", "kind", "path", "other"),
    [
        ("sglang_enable_generate", "sglang", "/generate", "/inference/v1/generate"),
        ("vllm_enable_inference_v1_generate", "vllm", "/inference/v1/generate", "/generate"),
    ],
)
async def test_endpoint_that_is_switched_off_is_no_route_and_its_workers_serve_the_other_ones(
    switch: str, kind: str, path: str, other: str
) -> None:
    """Nor does readiness count workers of its capability."""
    async with SimServer(kind) as sim, rig(sim.url, **{switch: False}) as gateway:
        reply = await gateway.client.post(path, json={})
        message = f"Route not found: POST {path}"
        assert (reply.status_code, reply.json()["message"]) == (404, message)
        ready = await gateway.client.get("/ready")
        assert ready.status_code == 503
        assert [endpoint["path"] for endpoint in ready.json()["endpoints"]] == [other]
        [worker] = gateway.app.fleet.workers
        assert worker.state == "ready"
        await gateway.client.post("/tokenize", json={})
        assert called(sim, "/tokenize")


@pytest.mark.parametrize(
    ("catalog", "message"),
    [
        ([], "no endpoint"),
        ([Endpoint("/metrics", ("POST",), SGLANG)], "clashes with '/metrics', a path of the gateway itself"),
    ],
)
def test_invalid_catalog_is_refused(catalog: Sequence[Endpoint], message: str) -> None:
    """Before the gateway listens, with the same errors as the default one."""
    with pytest.raises(CatalogError, match=message):
        create_app(Settings(), catalog=catalog)
