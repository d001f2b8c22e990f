"""One server that is several workers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from gateway.fleet.registry import Fleet
from gateway.formats.worker_contract import WorkerInfo
from gateway.sim import SimConfig, SimServer
from tests.fleet.support import fleet_of
from tests.support.fleet import called
from tests.support.gateway import rig, until


def probed(fleet: Fleet, *addresses: str | None, **facts: str) -> None:
    """Describe all workers as if they had been reached at ``addresses``. ``facts`` are by host."""
    for worker, address in zip(fleet.workers, addresses, strict=True):
        worker.pool._working = address
        known = facts.get(worker.address.host, "m").split("@")
        launch = known[1] if known[1:] else None
        fleet.describe(worker, {"echo": WorkerInfo("e", "cap", True, models=(known[0],), launch=launch)})


def shown(fleet: Fleet) -> list[str | None]:
    return [None if (one := worker.same_server_as) is None else one.url for worker in fleet.workers]


@pytest.mark.parametrize(
    ("urls", "addresses", "facts", "same"),
    [
        ("http://a:1@0 http://a:1@1", (None, None), {}, True),
        ("http://a:80@0 http://A", (None, None), {}, True),
        ("http://127.0.0.1:1 http://localhost:1", ("127.0.0.1", "127.0.0.1"), {}, True),
        ("http://127.0.0.1:1 http://0:1", ("127.0.0.1", "0.0.0.0"), {}, True),
        ("http://a:1/p http://b:1/p/", ("10.0.0.1", "10.0.0.1"), {}, True),
        ("http://a:1 http://b:1", ("10.0.0.1", "10.0.0.2"), {"a": "m@7", "b": "m@7"}, True),
        ("http://a:1 http://b:1", ("10.0.0.1", "10.0.0.2"), {}, False),
        ("http://a:1 http://b:2", ("10.0.0.1", "10.0.0.1"), {}, False),
        ("http://a:1/p http://b:1/q", ("10.0.0.1", "10.0.0.1"), {}, False),
        ("http://a http://b", ("10.0.0.1", "10.0.0.1"), {}, False),
        ("https://a:1 https://b:1", ("10.0.0.1", "10.0.0.1"), {}, False),
        ("http://a:1 http://b:1", ("10.0.0.1", "10.0.0.1"), {"a": "m@7", "b": "m@8"}, False),
        ("http://a:1 http://b:1", ("10.0.0.1", "10.0.0.1"), {"b": "other"}, False),
    ],
)
async def test_server_under_several_names_is_known_by_address_and_launch(
    urls: str, addresses: tuple[str, str], facts: dict[str, str], same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by an address where a reverse proxy may serve several engines, nor against what engines report."""
    fleet = fleet_of(*urls.split())
    for _ in range(2):
        probed(fleet, *addresses, **facts)
    first, second = fleet.workers
    assert shown(fleet) == [None, first.url if same else None]
    assert caplog.text.count("is the same server as") == int(same)
    fleet.drain(first)
    assert (shown(fleet), second.other_entries) == ([None], ())


async def test_name_that_moves_to_another_server_is_another_server() -> None:
    fleet = fleet_of("http://a:1", "http://b:1", "http://c:1")
    probed(fleet, *["10.0.0.1"] * 3)
    assert shown(fleet) == [None, "http://a:1", "http://a:1"]
    probed(fleet, "10.0.0.2", "10.0.0.1", "10.0.0.1")
    assert shown(fleet) == [None, None, "http://b:1"]


@pytest.mark.parametrize("other", ["http://localhost:{port}", "http://127.0.0.1:{port}@1"])
async def test_control_call_reaches_a_server_under_two_names_once(other: str) -> None:
    """Its other entry is skipped, with the reason; a pause and its end hold for both, whichever is named."""
    async with SimServer("sglang", SimConfig()) as sim:
        port = sim.url.rpartition(":")[2]
        urls = [f"{sim.url}@0" if "@" in other else sim.url, other.format(port=port)]
        async with rig(*urls) as gateway:
            workers = gateway.app.fleet.workers
            await until(
                lambda: workers[1].same_server_as is workers[0] and all(each.infos for each in workers)
            )

            async def call(path: str, **members: object) -> Any:
                before = len(called(sim, path.partition("?")[0]))
                reply = await gateway.client.post(path, json=members)
                assert len(called(sim, path.partition("?")[0])) == before + 1
                return reply.json()

            summary = await call("/pause_generation")
            assert [row["worker"] for row in summary["results"]] == urls[:1]
            (skipped,) = summary["skipped"]
            assert (skipped["worker"], skipped["reason"]) == (urls[1], f"it is the same server as {urls[0]}")
            assert [bool(each.cordons) for each in workers] == [True, True]
            await call(f"/continue_generation?worker={quote(urls[1], safe='')}")
            assert [bool(each.cordons) for each in workers] == [False, False]
            await call("/init_weights_update_group")  # for one worker, which it is
            await call("/abort_request", abort_all=True)
            rows = (await gateway.client.get("/workers")).json()["workers"]
            assert [row["same_server_as"] for row in rows] == [None, urls[0]]
