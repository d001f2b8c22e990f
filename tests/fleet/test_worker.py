"""A worker as data, and as a format sees it."""

from __future__ import annotations

from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.upstream.address import Address


def info(**facts: object) -> WorkerInfo:
    return WorkerInfo(**{"engine": "e", "capability": "c", "usable": True, **facts})  # type: ignore[arg-type]


def test_format_sees_the_prefix_the_key_and_its_own_info() -> None:
    worker = Worker(Address.parse("http://worker/p/"), authorization=b"Bearer k")
    mine = info(engine="mine")
    worker.infos = {"one": mine, "two": info(engine="theirs")}
    view = worker.view("one")
    assert (view.prefix, view.authorization, view.info) == (b"/p", b"Bearer k", mine)
    assert worker.view("two").info is worker.infos["two"]


def test_format_that_did_not_identify_the_worker_sees_the_info_of_its_engine() -> None:
    worker = Worker(Address.parse("http://worker"))
    assert worker.view("relayed").info is None
    worker.infos = {"one": info(usable=False), "two": info(engine="mine")}
    assert worker.view("relayed").info is worker.infos["two"]


def test_capability_that_is_not_usable_is_not_offered() -> None:
    worker = Worker(Address.parse("http://worker"))
    assert worker.offers("c") is None
    off, on = info(usable=False, reason="off"), info(capability="d")
    worker.infos = {"one": off, "two": on}
    assert worker.offers("c") is None
    assert worker.offers("d") is on


def test_key_of_a_worker_is_in_no_repr() -> None:
    worker = Worker(Address.parse("http://worker:1"), authorization=b"Bearer secret")
    assert worker.view("echo").authorization == b"Bearer secret"
    assert "secret" not in repr(worker) + repr(worker.view("echo")) + repr(worker.record)
