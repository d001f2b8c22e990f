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
from tests.support.gateway import serving, until

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
