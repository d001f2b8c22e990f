"""Workers are registered and removed in the dialect of any router, in any mixture."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.chaos.dialects import GENERATE, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import workers


async def urls(gw: Gateway) -> list[str]:
    """Return the URLs of all workers, which both list routes agree on."""
    old = (await gw.client.get("/list_workers")).json()["urls"]
    new = (await gw.client.get("/workers")).json()
    assert new["total"] == len(new["workers"])
    assert all(entry["id"] for entry in new["workers"])
    assert sorted(entry["url"] for entry in new["workers"]) == sorted(old)
    return sorted(old)


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_workers_come_and_go_by_all_dialects_and_are_listed_as_they_were_given(
    gw: Gateway, route: Route
) -> None:
    """A new one gets requests at once, a removed one none; repeating a removal is no fault."""
    async with workers(route.kind, 3) as fleet:
        first, second, third = (worker.url for worker in fleet)
        for reply in (
            await gw.client.post("/add_worker", params={"url": first}),
            await gw.client.post("/add_worker", json={"url": second}),
            await gw.client.post("/workers", json={"url": third, "worker_type": "regular"}),
        ):
            assert reply.is_success
        assert await urls(gw) == sorted((first, second, third))
        await gw.site.ready(*fleet)
        assert await gw.ask_many(route, 3, 1) == [200] * 3
        name = (await gw.site.workers())[first]["id"]
        removals = [
            ("DELETE", f"/workers/{name}", first),
            ("DELETE", f"/workers/{quote(second, safe='')}", second),
            ("POST", f"/remove_worker?url={third}", third),
        ]
        for count, (method, path, gone) in enumerate(removals, 1):
            assert (await gw.client.request(method, path)).is_success
            assert gone not in await urls(gw)
            assert await gw.ask_many(route, 3, 1) == [200 if count < 3 else 503] * 3
        assert sum(len(worker.calls) for worker in fleet) == 9 and len(fleet[0].calls) <= 3
        for method, path, _ in removals:
            again = await gw.client.request(method, path)
            assert again.is_success or again.status_code == 404
            assert isinstance(again.json(), dict)
        assert await urls(gw) == []
