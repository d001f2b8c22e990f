"""Names whose servers do not answer delay no other name."""

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
from tests.support.processes import PATIENCE
from tests.upstream.peer import Listener


class Lookup:
    """A system resolver that answers 127.0.0.1, except for the names that hang until ``end``."""

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
        await until(lambda: not resolver._pending)


async def test_many_names_that_hang_delay_no_other() -> None:
    """The event loop's own resolver has a handful of threads, which they would all use."""
    async with resolving() as (resolver, lookup):
        lookup.hanging = {f"hangs-{number}" for number in range(module.THREADS - 1)}
        stuck = [asyncio.ensure_future(resolver.resolve(host)) for host in lookup.hanging]
        await until(lambda: len(lookup.asked) == len(stuck))
        async with asyncio.timeout(PATIENCE):
            assert await resolver.resolve("good") == ("127.0.0.1",)
        lookup.end()
        assert {type(each) for each in await asyncio.gather(*stuck, return_exceptions=True)} == {OSError}


async def test_name_that_hangs_is_looked_up_once_at_a_time() -> None:
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


async def test_fresh_answer_is_used_without_a_lookup() -> None:
    async with resolving() as (resolver, lookup):
        for _ in range(3):
            assert await resolver.resolve("good") == ("127.0.0.1",)
        assert lookup.asked == ["good"]


async def test_stale_answer_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH", 0.0)
    async with resolving() as (resolver, lookup):
        await resolver.resolve("good")
        lookup.address = "127.0.0.2"
        assert await resolver.resolve("good") == ("127.0.0.2",)


async def test_old_answer_is_used_while_the_lookup_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH", 0.0)
    monkeypatch.setattr(module, "REFRESH_WAIT", 0.01)
    async with resolving() as (resolver, lookup):
        await resolver.resolve("good")
        lookup.hanging = {"good"}
        async with asyncio.timeout(PATIENCE):
            assert await resolver.resolve("good") == ("127.0.0.1",)


async def test_old_answer_is_used_when_no_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports that after a timeout, or at once if the server is down."""
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
async def test_address_is_not_looked_up(address: str) -> None:
    async with resolving() as (resolver, lookup):
        assert await resolver.resolve(address) == (address,)
        assert lookup.asked == []


async def test_cached_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 3)
    async with resolving() as (resolver, _):
        for number in range(9):
            await resolver.resolve(f"host-{number}")
        assert len(resolver._answers) == 3


async def test_pool_tries_every_address_of_a_name(listener: Listener) -> None:
    """A name may have an IPv6 and an IPv4 address while the worker listens on one of them."""
    resolver = Resolver(
        lambda host, port, **kind: [(2, 1, 6, "", (each, 0)) for each in ("127.0.0.99", "127.0.0.1")]
    )
    pool = Pool("both", listener.port, None, 5.0, resolver)
    connection = await pool.connect()
    await listener.accept()
    connection.close()


async def test_pool_goes_on_after_an_address_that_does_not_answer(listener: Listener) -> None:
    """A name may still have the address of a machine that is gone. A full accept queue is as silent."""
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
