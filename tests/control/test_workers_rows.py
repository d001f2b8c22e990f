"""A worker as the API shows it."""

from __future__ import annotations

import json

from gateway.cards.values import CardValues
from gateway.control.workers_rows import WorkerEntry, WorkerList, render_list, worker_row
from gateway.fleet.states import CordonSource, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.optional import WorkerLoad
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address
from tests.support.calls import calls_of

STATES = ("joining", "ready", "busy", "suspect", "held", "dead", "draining")


def known(url: str = "http://a:1", **facts: object) -> Worker:
    """A ready worker with probe results."""
    worker = Worker(Address.parse(url))
    worker.state, worker.reason = WorkerState.READY, ""
    described = {"engine": "eng", "capability": "cap", "usable": True, "models": ("m", "lora"), **facts}
    worker.infos = {"echo": WorkerInfo(**described)}  # type: ignore[arg-type]
    return worker


def test_row_has_the_record_and_the_probe_results() -> None:
    """With the members of other routers, and more; none can hold a key."""
    worker = known(
        version="1.2", card=CardValues(context_length=4096, weight_version="7"), adapters=("lora",)
    )
    worker.authorization = b"Bearer hunter2"
    worker.record = WorkerRecord(worker.url, priority=3, bootstrap_port=8998, labels={"zone": "a"})
    worker.in_flight, worker.vitals.reported = 2, WorkerLoad(5, 1, 0.25)
    row = worker_row(worker)
    record = {"priority": 3, "bootstrap_port": 8998, "labels": {"zone": "a"}}
    state = {"state": "ready", "reason": "", "holds": [], "cordons": [], "is_healthy": True, "load": 2}
    of_other_routers = {"cost": 1.0, "worker_type": "regular", "model_id": "m", "metadata": {"zone": "a"}}
    always = {"connection_mode": "http", "disable_health_check": False}
    engine = {"engine": "eng", "version": "1.2", "context_length": 4096, "weight_version": "7"}
    models = {"models": ("m", "lora"), "adapters": ("lora",), "stream_mode": None}
    assert row == {
        "id": worker.id,
        "url": "http://a:1",
        **record,
        **state,
        **of_other_routers,
        **always,
        **engine,
        "reported_load": {"running": 5, "waiting": 1, "cache_usage": 0.25},
        "same_server_as": None,
        "vocab_size": None,
        "offers": [{"format": "echo", "usable": True, "reason": "", **engine, **models}],
        "card": {},
        "card_version": 0,
        "card_conflicts": (),
    }
    assert WorkerEntry.model_validate(row)


def test_row_of_a_worker_that_never_replied() -> None:
    """Its record is shown in place of probe results."""
    worker = Worker(Address.parse("http://a:1@3"), record=WorkerRecord("http://a:1@3", model="said"))
    row = worker_row(worker)
    assert WorkerEntry.model_validate(row)
    assert (row["url"], row["model_id"], row["engine"], row["offers"]) == ("http://a:1@3", "said", None, [])
    assert (row["state"], row["reason"], row["is_healthy"]) == ("joining", "not probed yet", False)


def test_row_with_an_earlier_state() -> None:
    """State and reason are the earlier ones, the rest is current."""
    worker = known()
    worker.cordons.reasons[CordonSource.OWNER] = "why"
    row = worker_row(worker, WorkerState.DEAD, "gone")
    assert (row["state"], row["reason"], row["is_healthy"]) == ("dead", "gone", False)
    assert row["holds"] == ["owner"]
    for worker.state in WorkerState:
        assert worker_row(worker)["is_healthy"] is worker.usable


def test_usable_offer_is_shown_if_a_worker_has_several() -> None:
    worker = known()
    off = WorkerInfo("other", "cap", False, reason="off", models=("x",))
    worker.infos = {"a": off, **worker.infos}
    assert (worker_row(worker)["engine"], worker_row(worker)["model_id"]) == ("eng", "m")


async def test_list_counts_types_and_states() -> None:
    """Also those that no worker has."""
    workers = [known("http://a:1"), known("http://b:1")]
    workers[1].state = WorkerState.DEAD
    workers[1].record = WorkerRecord("http://b:1", worker_type="prefill")
    body = json.loads(await render_list(workers))
    assert WorkerList.model_validate(body).total == 2
    counts = (
        {"regular": 1, "prefill": 1, "decode": 0, "encode": 0}
        | dict.fromkeys(STATES, 0)
        | {"ready": 1, "dead": 1}
    )
    assert body["stats"] == {f"{name}_count": count for name, count in counts.items()}
    unpaired = json.loads(await render_list([known(version="\ud800")]))  # which UTF-8 cannot encode
    assert unpaired["workers"][0]["version"] == "\ud800"
    empty = json.loads(await render_list([]))
    assert (empty["workers"], empty["total"]) == ([], 0)


def test_list_of_a_large_fleet_is_made_in_slices_of_bounded_work() -> None:
    """Other tasks run between the slices, so that 512 workers do not block the event loop."""
    workers = [known(f"http://10.0.{n // 256}.{n % 256}:30000") for n in range(512)]
    rendering = render_list(workers)
    parts: list[str] = []

    def one_slice() -> None:
        try:
            rendering.send(None)
        except StopIteration as end:
            parts.append(end.value)

    calls = [calls_of(one_slice) for _ in range(9)]
    assert len(json.loads(parts[0])["workers"]) == 512
    assert max(calls) < 64 * 40
