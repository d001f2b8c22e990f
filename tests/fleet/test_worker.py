"""A worker's address and what is known of it."""

from __future__ import annotations

import pytest

from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.upstream.address import Address, BadWorkerUrl


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "prefix", "authority"),
    [
        ("http://worker:30000", "worker", 30000, False, b"", b"worker:30000"),
        ("http://worker", "worker", 80, False, b"", b"worker"),
        ("https://worker", "worker", 443, True, b"", b"worker"),
        ("HTTP://Worker:1/", "worker", 1, False, b"", b"Worker:1"),
        ("https://worker:8443/a/b/", "worker", 8443, True, b"/a/b", b"worker:8443"),
        ("http://worker//", "worker", 80, False, b"", b"worker"),
        ("http://10.0.0.1:65535/%20x", "10.0.0.1", 65535, False, b"/%20x", b"10.0.0.1:65535"),
        ("http://[::1]:30000", "::1", 30000, False, b"", b"[::1]:30000"),
        ("http://[2001:db8::1]/v1", "2001:db8::1", 80, False, b"/v1", b"[2001:db8::1]"),
    ],
)
def test_address(url: str, host: str, port: int, tls: bool, prefix: bytes, authority: bytes) -> None:
    """A URL gives what to connect to, what to call it and what to put before every path."""
    address = Address.parse(url)
    assert address == Address(url, host, port, tls, prefix, authority)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "worker",
        "worker:30000",
        "//worker:30000",
        "ftp://worker",
        "unix:///run/worker.sock",
        "http://",
        "http:///generate",
        "http://:30000",
        "http://::1:30000",
        "http://[::1",
        "http://[nonsense]:1",
        "http://worker:0",
        "http://worker:65536",
        "http://worker:-1",
        "http://worker:port",
        "http://wörker",
        "http://worker/ü",
        "http://wor ker",
        " http://worker",
        "http://worker\n",
        "http://worker/a\tb",
        "http://worker\x7f",
        "http://worker?x=1",
        "http://worker/?",
        "http://worker/#",
        "http://worker/#top",
    ],
)
def test_url_that_cannot_be_used(url: str) -> None:
    """Whatever is no plain http URL is refused, and named."""
    with pytest.raises(BadWorkerUrl) as caught:
        Address.parse(url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@worker",
        "http://secret@worker:1",
        "http://@worker",
        "ftp://me:secret@worker",
        "http://me:secret@worker:99999",
        "http://me:secret@wörker",
        "me:secret@worker",
    ],
)
def test_url_with_credentials(url: str) -> None:
    """Credentials are refused, whatever else is wrong, and not repeated."""
    with pytest.raises(BadWorkerUrl, match="credentials") as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def info(**facts: object) -> WorkerInfo:
    return WorkerInfo(**{"engine": "e", "capability": "c", "usable": True, **facts})  # type: ignore[arg-type]


def test_view_of_one_format() -> None:
    """A format sees the prefix, the key and its own description, and no other's."""
    worker = Worker(Address.parse("http://worker/p/"), authorization=b"Bearer k")
    mine = info(engine="mine")
    worker.infos = {"one": mine, "two": info(engine="theirs")}
    view = worker.view("one")
    assert (view.prefix, view.authorization, view.info) == (b"/p", b"Bearer k", mine)
    assert worker.view("two").info is worker.infos["two"]


def test_view_of_a_route_that_is_no_format_of_the_worker() -> None:
    """It is told what its engine is, once that can serve."""
    worker = Worker(Address.parse("http://worker"))
    assert worker.view("relayed").info is None
    worker.infos = {"one": info(usable=False), "two": info(engine="mine")}
    assert worker.view("relayed").info is worker.infos["two"]


def test_offers_only_what_is_usable() -> None:
    """A capability that is switched off is not offered, one under any format's name is."""
    worker = Worker(Address.parse("http://worker"))
    assert worker.offers("c") is None
    off, on = info(usable=False, reason="off"), info(capability="d")
    worker.infos = {"one": off, "two": on}
    assert worker.offers("c") is None
    assert worker.offers("d") is on


def test_worker_begins_unknown() -> None:
    """A new worker is joining, with nothing on it, and shows that."""
    worker = Worker(Address.parse("http://worker:1"))
    assert worker.state is WorkerState.JOINING
    assert worker.in_flight == 0
    assert repr(worker) == "<Worker http://worker:1 joining in_flight=0>"


def test_key_of_a_worker_is_in_no_text_of_it() -> None:
    """Whatever a log or a traceback may show."""
    worker = Worker(Address.parse("http://worker:1"), authorization=b"Bearer secret")
    assert worker.view("echo").authorization == b"Bearer secret"
    assert "secret" not in repr(worker) + repr(worker.view("echo")) + repr(worker.record)
