"""Names whose servers do not answer delay no other name."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.errors import ConnectFailed
from gateway.upstream import resolver as module
from gateway.upstream.pool import Pool
from gateway.upstream.resolver import Resolver
from tests.support.gateway import until
from tests.support.processes import PATIENCE
from tests.upstream.peer import Listener, full_backlog


class Lookup:
    """A system resolver that answers ``address``, fails, or hangs until ``end`` for some names."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hanging: set[str] = set()
        self.address = "127.0.0.1"
        self.fault: OSError | None = None
        self._end = threading.Event()

    def __call__(self, host: str, port: object, **kind: Any) -> Sequence[tuple[Any, ...]]:
        self.asked.append(host)
        if host in self.hanging:
            self._end.wait(20)
            raise OSError("nobody answered")
        if self.fault is not None:
            raise self.fault
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


async def test_answer_is_used_for_5_s_and_longer_only_while_no_server_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system reports that after a timeout, or at once if the server is down."""
    assert module.FRESH == 5.0
    async with resolving() as (resolver, lookup):
        for _ in range(3):
            assert await resolver.resolve("good") == ("127.0.0.1",)
        assert lookup.asked == ["good"]
        monkeypatch.setattr(module, "FRESH", 0.0)
        lookup.address = "127.0.0.2"
        assert await resolver.resolve("good") == ("127.0.0.2",)
        lookup.fault = socket.gaierror(socket.EAI_AGAIN, "no answer")
        assert await resolver.resolve("good") == ("127.0.0.2",)
        lookup.fault = socket.gaierror(socket.EAI_NONAME, "no such name")
        with pytest.raises(OSError, match="no such name"):
            await resolver.resolve("good")
        monkeypatch.setattr(module, "REFRESH_WAIT", 0.01)
        lookup.hanging = {"good"}
        async with asyncio.timeout(PATIENCE):
            assert await resolver.resolve("good") == ("127.0.0.2",)


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


async def test_pool_goes_on_after_an_address_that_does_not_answer(listener: Listener) -> None:
    """A name may still have the address of a machine that is gone. A full accept queue is as silent."""
    addresses = [(2, 1, 6, "", (each, 0)) for each in ("127.0.0.99", "127.0.0.1")]
    with full_backlog("127.0.0.99", listener.port):
        pool = Pool("both", listener.port, None, 1.0, Resolver(lambda host, port, **kind: addresses))
        connection = await pool.connect()
        await listener.accept()
        connection.close()


async def test_name_that_hangs_is_a_failed_connect_after_its_timeout(listener: Listener) -> None:
    async with resolving() as (resolver, lookup):
        lookup.hanging = {"hangs"}
        with pytest.raises(ConnectFailed):
            await Pool("hangs", listener.port, None, 0.02, resolver).connect()
