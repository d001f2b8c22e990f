"""Names that hang hold up nobody else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from gateway.errors import ConnectFailed
from gateway.upstream import resolver as module
from gateway.upstream.pool import Pool
from gateway.upstream.resolver import Resolver
from tests.support.gateway import until
from tests.upstream.peer import Listener


class Lookup:
    """Answers 127.0.0.1 for every name, but for those that hang until the end."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hanging: set[str] = set()
        self.address = "127.0.0.1"
        self._end = threading.Event()

    def __call__(self, host: str, port: object, **kind: Any) -> Sequence[tuple[Any, ...]]:
        self.asked.append(host)
        if host in self.hanging:
            self._end.wait(20)
            raise OSError("nobody answered")
        if host == "unknown":
            raise OSError("no such name")
        return [(2, 1, 6, "", (self.address, 0))] * 2

    def end(self) -> None:
        self._end.set()


@asynccontextmanager
async def resolving() -> AsyncIterator[tuple[Resolver, Lookup]]:
    lookup = Lookup()
    resolver = Resolver(lookup)
    try:
        yield resolver, lookup
    finally:
        lookup.end()
        await until(lambda: not resolver._asking)


async def test_many_names_that_hang_hold_up_no_other() -> None:
    """The event loop's own resolver has a handful of threads, all of which they would take."""
    async with resolving() as (resolver, lookup):
        lookup.hanging = {f"hangs-{number}" for number in range(module.THREADS - 1)}
        stuck = [asyncio.ensure_future(resolver.resolve(host)) for host in lookup.hanging]
        await until(lambda: len(lookup.asked) == len(stuck))
        async with asyncio.timeout(1):
            assert await resolver.resolve("good") == ("127.0.0.1",)
        lookup.end()
        assert {type(each) for each in await asyncio.gather(*stuck, return_exceptions=True)} == {OSError}


async def test_name_that_hangs_is_asked_for_once_at_a_time() -> None:
    async with resolving() as (resolver, lookup):
        lookup.hanging = {"hangs"}
        waiting = [asyncio.ensure_future(resolver.resolve("hangs")) for _ in range(50)]
        await until(lambda: bool(lookup.asked))
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert lookup.asked == ["hangs"]
        lookup.end()
        await asyncio.wait(waiting)
        assert all(isinstance(each.exception(), OSError) for each in waiting[1:])


async def test_fresh_answer_costs_no_question() -> None:
    async with resolving() as (resolver, lookup):
        for _ in range(3):
            assert await resolver.resolve("good") == ("127.0.0.1",)
        assert lookup.asked == ["good"]


async def test_stale_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH", 0.0)
    async with resolving() as (resolver, lookup):
        await resolver.resolve("good")
        lookup.address = "127.0.0.2"
        assert await resolver.resolve("good") == ("127.0.0.2",)


async def test_known_name_stays_known_while_its_resolver_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH", 0.0)
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    async with resolving() as (resolver, lookup):
        await resolver.resolve("good")
        lookup.hanging = {"good"}
        async with asyncio.timeout(1):
            assert await resolver.resolve("good") == ("127.0.0.1",)


async def test_known_name_stays_known_when_no_resolver_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system says in the end of one that hangs, and at once of one that is down."""
    monkeypatch.setattr(module, "FRESH", 0.0)
    failures: list[int] = []

    def lookup(host: str, port: object, **kind: Any) -> Sequence[tuple[Any, ...]]:
        if failures:
            raise socket.gaierror(failures[0], "no answer")
        return [(2, 1, 6, "", ("127.0.0.1", 0))]

    resolver = Resolver(lookup)
    await resolver.resolve("good")
    failures.append(socket.EAI_AGAIN)
    assert await resolver.resolve("good") == ("127.0.0.1",)
    failures[0] = socket.EAI_NONAME
    with pytest.raises(OSError, match="no answer"):
        await resolver.resolve("good")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%lo"])
async def test_address_is_asked_for_nowhere(address: str) -> None:
    async with resolving() as (resolver, lookup):
        assert await resolver.resolve(address) == (address,)
        assert lookup.asked == []


async def test_answers_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 3)
    async with resolving() as (resolver, _):
        for number in range(9):
            await resolver.resolve(f"host-{number}")
        assert len(resolver._known) == 3


async def test_pool_connects_by_name(listener: Listener) -> None:
    async with resolving() as (resolver, _):
        pool = Pool("good", listener.port, None, 5.0, resolver)
        connection = await pool.connect()
        await listener.accept()
        connection.close()


async def test_pool_tries_every_address_of_a_name(listener: Listener) -> None:
    """As of a name that stands for both protocols, on a machine that listens on one."""
    resolver = Resolver(
        lambda host, port, **kind: [(2, 1, 6, "", (each, 0)) for each in ("127.0.0.99", "127.0.0.1")]
    )
    pool = Pool("both", listener.port, None, 5.0, resolver)
    connection = await pool.connect()
    await listener.accept()
    connection.close()


async def test_pool_passes_over_an_address_that_says_nothing(listener: Listener) -> None:
    """As of a machine that is gone, whose address the name still has. A full queue is as silent."""
    with ExitStack() as sockets:
        silent = sockets.enter_context(socket.socket())
        silent.bind(("127.0.0.99", listener.port))
        silent.listen(0)
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        resolver = Resolver(
            lambda host, port, **kind: [(2, 1, 6, "", (each, 0)) for each in ("127.0.0.99", "127.0.0.1")]
        )
        connection = await Pool("both", listener.port, None, 1.0, resolver).connect()
        await listener.accept()
        connection.close()


async def test_name_that_hangs_is_a_failed_connect_after_its_timeout(listener: Listener) -> None:
    async with resolving() as (resolver, lookup):
        lookup.hanging = {"hangs"}
        with pytest.raises(ConnectFailed):
            await Pool("hangs", listener.port, None, 0.02, resolver).connect()


async def test_unknown_name_is_a_failed_connect(listener: Listener) -> None:
    async with resolving() as (resolver, _):
        with pytest.raises(ConnectFailed):
            await Pool("unknown", listener.port, None, 5.0, resolver).connect()
