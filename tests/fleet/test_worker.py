"""A worker as data, and as a format sees it."""

from __future__ import annotations

from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.upstream.address import Address


def info(**facts: object) -> WorkerInfo:
    return WorkerInfo(**{"engine": "e", "capability": "c", "usable": True, **facts})  # type: ignore[arg-type]


def test_format_sees_the_prefix_the_key_and_its_own_info() -> None:
    worker = Worker(Address.parse("http://worker/p/"), authorization=b"Bearer secret")
    assert worker.view("relayed").info is None
    worker.infos = {"one": info(usable=False), "two": info(engine="theirs")}
    view = worker.view("one")
    assert (view.prefix, view.authorization, view.info) == (b"/p", b"Bearer secret", worker.infos["one"])
    assert worker.view("two").info is worker.view("relayed").info is worker.infos["two"]
    assert "secret" not in repr(worker) + repr(view) + repr(worker.record)


def test_capability_that_is_not_usable_is_not_offered() -> None:
    worker = Worker(Address.parse("http://worker"))
    assert worker.offers("c") is None
    worker.infos = {"one": info(usable=False, reason="off"), "two": info(capability="d")}
    assert worker.offers("c") is None
    assert worker.offers("d") is worker.infos["two"]
