"""Workers are registered and removed in the dialect of any router, in any mixture."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

from tests.chaos.dialects import ENGINES, SGLANG
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Worker, workers


async def add(gw: Gateway, fleet: list[Worker]) -> list[httpx.Response]:
    """Register three workers, each in another dialect."""
    first, second, third = fleet
    return [
        await gw.client.post("/add_worker", params={"url": first.url}),
        await gw.client.post("/add_worker", json={"url": second.url}),
        await gw.client.post("/workers", json={"url": third.url, "worker_type": "regular"}),
    ]


async def urls(gw: Gateway) -> list[str]:
    """Return the URLs of all workers, which both list routes agree on."""
    old = (await gw.client.get("/list_workers")).json()["urls"]
    new = (await gw.client.get("/workers")).json()
    assert new["total"] == len(new["workers"])
    assert all(entry["id"] for entry in new["workers"])
    assert sorted(entry["url"] for entry in new["workers"]) == sorted(old)
    return sorted(old)


@pytest.mark.parametrize("kind", ENGINES)
async def test_workers_come_by_all_dialects_and_are_listed_as_they_were_given(gw: Gateway, kind: str) -> None:
    async with workers(kind, 3) as fleet:
        assert all(reply.is_success for reply in await add(gw, fleet))
        assert await urls(gw) == sorted(worker.url for worker in fleet)


@pytest.mark.parametrize("kind", ENGINES)
async def test_workers_go_by_all_dialects_and_repeating_one_is_no_fault(gw: Gateway, kind: str) -> None:
    async with workers(kind, 3) as fleet:
        await add(gw, fleet)
        first, second, third = fleet
        name = (await gw.site.workers())[first.url]["id"]
        removals = [
            ("DELETE", f"/workers/{name}", first),
            ("DELETE", f"/workers/{quote(second.url, safe='')}", second),
            ("POST", f"/remove_worker?url={third.url}", third),
        ]
        for method, path, gone in removals:
            assert (await gw.client.request(method, path)).is_success
            assert gone.url not in await urls(gw)
        for method, path, _ in removals:
            again = await gw.client.request(method, path)
            assert again.is_success or again.status_code == 404
            assert isinstance(again.json(), dict)
        assert await urls(gw) == []


async def test_removed_worker_gets_nothing_more_and_a_new_one_at_once(gw: Gateway) -> None:
    async with workers("sglang", 2) as (old, new):
        await gw.serve(old)
        await gw.client.post("/add_worker", params={"url": new.url})
        await gw.site.ready(new)
        await gw.client.post("/remove_worker", params={"url": old.url})
        for _ in range(6):
            assert (await gw.ask(SGLANG)).status_code == 200
        assert (len(old.calls), len(new.calls)) == (0, 6)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/add_worker", b""),
        ("POST", "/add_worker?url=", b""),
        ("POST", "/add_worker?url=not-a-url", b""),
        ("POST", "/add_worker", b"{"),
        ("POST", "/workers", b""),
        ("POST", "/workers", b'{"url": 7}'),
        ("POST", "/workers", b'{"url": "ftp://host"}'),
        ("POST", "/remove_worker", b""),
        ("DELETE", "/workers/nobody", b""),
        ("GET", "/workers/nobody", b""),
    ],
)
async def test_call_that_names_no_worker_is_refused_in_json(
    gw: Gateway, method: str, path: str, body: bytes
) -> None:
    """The reply is a 4xx with a reason, and nothing changes."""
    headers = {"content-type": "application/json"}
    reply = await gw.client.request(method, path, content=body, headers=headers)
    assert 400 <= reply.status_code < 500
    assert reply.json()["error"]["message"]
    assert await urls(gw) == []
