"""Workers whose name leads to another address, or to several."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from gateway.errors import ConnectFailed
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker
from gateway.formats.contract import UpstreamRequest
from gateway.proxy.aborts import send_quietly
from gateway.routing.policy import LeastInFlight
from gateway.sim import Silence, SimConfig, SimServer
from gateway.upstream.address import Address
from gateway.upstream.connection import Connection
from gateway.upstream.connector import Connector
from gateway.upstream.pool import Pool
from gateway.upstream.resolver import FRESH, Resolver
from tests.support.gateway import RawClient, arrived, rig, until
from tests.support.generate import body_of
from tests.upstream.peer import BODY, REQUEST, body, full_backlog

OLD, NEW = "127.0.0.1", "127.0.0.2"


class Hosts:
    """Two addresses with a server each, on the same port, and a name that leads to ``addresses``."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = (OLD,)
        self.requests: dict[str, list[bytes]] = {OLD: [], NEW: []}
        self.port = 0
        self.open = 0
        self.resolver = Resolver(self._look_up)

    def _look_up(self, host: str, port: Any, **kind: Any) -> list[tuple[Any, ...]]:
        assert host == "engine.moving"
        return [(2, 1, 6, "", (address, 0)) for address in self.addresses]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = writer.get_extra_info("sockname")[0]
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0]))
                self.requests[at].append(head.split(b" ", 2)[1])
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def hosts() -> AsyncIterator[Hosts]:
    found = Hosts()
    async with await asyncio.start_server(found.serve, OLD, 0) as server:
        found.port = server.sockets[0].getsockname()[1]
        async with await asyncio.start_server(found.serve, NEW, found.port):
            yield found
            await until(lambda: not found.open)  # the pools are closed


async def request(pool: Pool) -> Connection:
    connection = pool.take() or await pool.connect()
    connection.send(REQUEST, BODY)
    await connection.head()
    assert await body(connection) == b"ok"
    pool.give_back(connection)
    return connection


@pytest.mark.virtual_time
async def test_requests_follow_a_name_that_moves() -> None:
    """Within the interval after which a name is resolved again, although connections are kept."""
    async with hosts() as of:
        pool = Pool("engine.moving", of.port, None, 5.0, of.resolver)
        assert (await request(pool)).address == OLD
        of.addresses = (NEW,)
        addresses = []
        for _ in range(100):
            addresses.append((await request(pool)).address)
            await asyncio.sleep(0.1)
        assert addresses[-1] == NEW
        assert addresses.count(OLD) <= 10 * FRESH + 2
        pool.close()


@pytest.mark.virtual_time
async def test_name_that_is_not_resolved_any_more_keeps_its_address() -> None:
    async with hosts() as of:
        pool = Pool("engine.moving", of.port, None, 5.0, of.resolver)
        await request(pool)
        of.addresses = ()
        for _ in range(100):
            assert (await request(pool)).address == OLD
            await asyncio.sleep(0.1)
        pool.close()


async def test_abort_goes_to_the_address_of_the_exchange() -> None:
    async with hosts() as of:
        worker = Worker(Address.parse(f"http://engine.moving:{of.port}"))
        Fleet(LeastInFlight(Random(0)), Connector(5.0, resolver=of.resolver)).add(worker)
        await request(worker.pool)
        of.addresses = (NEW,)
        abort = UpstreamRequest(b"POST", b"/abort_request", [], b"{}")
        for _ in range(2):  # on a kept connection, then on a new one
            assert await send_quietly(worker, abort, 5.0, OLD) is None
            worker.pool.close()
            await asyncio.sleep(0.01)
        assert of.requests[OLD].count(b"/abort_request") == 2
        assert of.requests[NEW] == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("how", ["called", "left"])
async def test_exchange_is_aborted_where_it_runs_although_the_probes_go_elsewhere(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, addresses = socket.getaddrinfo, {"engine.moving": OLD}

    def moving(host: Any, *rest: Any, **kind: Any) -> Any:
        return look_up(addresses.get(host, host), *rest, **kind)

    monkeypatch.setattr(socket, "getaddrinfo", moving)
    async with (
        SimServer("sglang") as old,
        SimServer("sglang", SimConfig(host=NEW, port=old.port)) as new,
        rig(f"http://engine.moving:{old.port}") as gateway,
    ):
        old.behave(Silence())
        client = await RawClient.connect(gateway.port)
        client.request("/generate", json.dumps(body_of("sglang", rid="A")).encode())
        await arrived(1, old)
        addresses["engine.moving"] = NEW
        await until(lambda: len(new.all_requests) > 9)
        if how == "called":
            await gateway.client.post("/abort_request", json={"rid": "A"})
        client.leave()
        assert (await old.abort_called()).ids == ("A",)
        assert not new.aborts


@pytest.mark.pure_only(reason="replaces a method of a compiled class")
async def test_address_that_does_not_answer_delays_a_connect_once() -> None:
    """The address that accepted is tried first from then on."""
    found = Hosts()
    with full_backlog(OLD) as found.port:
        async with await asyncio.start_server(found.serve, NEW, found.port):
            found.addresses = (OLD, NEW)
            pool = Pool("engine.moving", found.port, None, 5.0, found.resolver)
            attempts: list[str] = []
            connect = pool._connect

            async def noted(address: str) -> Connection:
                attempts.append(address)
                return await connect(address)

            pool._connect = noted  # type: ignore[method-assign]
            for _ in range(3):
                (await pool.connect()).close()
            assert attempts == [OLD, NEW, NEW, NEW]
            pool.close()
            await until(lambda: not found.open)


async def test_connect_fails_with_the_last_cause_when_no_address_accepts() -> None:
    found = Hosts()
    found.addresses = (OLD, NEW)
    with socket.create_server((OLD, 0)) as server:
        port = server.getsockname()[1]
    pool = Pool("engine.moving", port, None, 5.0, found.resolver)
    with pytest.raises(ConnectFailed) as caught:
        await pool.connect()
    assert isinstance(caught.value.cause, ConnectionRefusedError)
