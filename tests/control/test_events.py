"""The stream of the fleet's changes, on real sockets."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from sse_starlette.sse import AppStatus

from gateway.control import events
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.sim import SimConfig, SimServer
from gateway.upstream.address import Address
from tests.support.gateway import RawClient, Rig, rig, until
from tests.support.served import served

PATH = "/workers/events"


class Watcher:
    """The events of one stream; waits some seconds for each."""

    def __init__(self, reply: httpx.Response) -> None:
        self.reply = reply
        self._parts = reply.aiter_text()
        self._text = ""

    async def frame(self) -> dict[str, str]:
        """The fields of the next event by name; a comment has none."""
        async with asyncio.timeout(10):
            while "\n\n" not in self._text:
                self._text += await anext(self._parts)
        frame, _, self._text = self._text.partition("\n\n")
        fields = (line.partition(":") for line in frame.split("\n"))
        return {name: value.removeprefix(" ") for name, _, value in fields}

    async def event(self) -> tuple[str, Any]:
        """The next event that is no comment, its data parsed."""
        while "event" not in (frame := await self.frame()):
            assert list(frame) == [""]
        return frame["event"], json.loads(frame["data"])

    async def brief(self) -> tuple[str, str, str]:
        """Event, URL and state."""
        event, entry = await self.event()
        return event, entry["url"], entry["state"]

    async def rest(self) -> str:
        """The bytes up to the regular end of the stream."""
        async with asyncio.timeout(10):
            return self._text + "".join([part async for part in self._parts])


@asynccontextmanager
async def watching(http: httpx.AsyncClient) -> AsyncIterator[Watcher]:
    async with http.stream("GET", PATH) as reply:
        assert reply.status_code == 200
        yield Watcher(reply)


@asynccontextmanager
async def asking(rigged: Rig, *headers: tuple[str, str], reset: bool = False) -> AsyncIterator[RawClient]:
    """A raw client that requested the stream and disconnects at the end."""
    watcher = await RawClient.connect(rigged.port)
    watcher.request(PATH, b"", method="GET", headers=headers)
    try:
        yield watcher
    finally:
        watcher.leave(reset=reset)


def join(fleet: Fleet, name: str, state: WorkerState = WorkerState.READY) -> Worker:
    """A worker that is not probed."""
    worker = Worker(Address.parse(f"http://{name}:1"))
    worker.state = state
    fleet.add(worker)
    return worker


def followers(fleet: Fleet) -> int:
    return len(fleet._followers)


# -- events


async def test_stream_begins_with_the_current_entry_of_each_worker() -> None:
    """Then a worker that a probe finds dead is an event."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as rigged:
        join(rigged.app.fleet, "b", WorkerState.DEAD)
        listed = (await rigged.client.get("/workers")).json()["workers"]
        async with watching(rigged.client) as watcher:
            entries = [await watcher.event() for _ in listed]
            await sim.stop()
            assert await watcher.brief() == ("state", sim.url, "dead")
        assert entries == [("state", entry) for entry in listed]
        assert watcher.reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert watcher.reply.headers["cache-control"] == "no-store"


async def test_changes_are_sent_in_order_each_with_its_own_state() -> None:
    async with rig() as rigged:
        fleet = rigged.app.fleet
        a = join(fleet, "a")
        async with watching(rigged.client) as watcher:
            await watcher.event()
            fleet.apply_event(a, WorkerEvent.DIE, "gone")
            fleet.apply_event(a, WorkerEvent.SERVES)
            join(fleet, "b", WorkerState.JOINING)
            fleet.drain(a)
            event, entry = await watcher.event()
            assert (event, entry["state"]) == ("state", "dead")
            assert (entry["reason"], entry["is_healthy"]) == ("gone", False)
            assert await watcher.brief() == ("state", "http://a:1", "ready")
            assert await watcher.brief() == ("joined", "http://b:1", "joining")
            assert await watcher.brief() == ("state", "http://a:1", "draining")
            assert await watcher.brief() == ("left", "http://a:1", "gone")


async def test_comments_are_sent_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first at once, so that the head of the reply is sent for an empty fleet."""
    assert events.PING == 15
    async with rig() as rigged, watching(rigged.client) as watcher:
        assert list(await watcher.frame()) == [""]
    monkeypatch.setattr(events, "PING", 0.02)
    async with rig() as rigged, watching(rigged.client) as watcher:
        await watcher.frame()
        for _ in range(3):
            comment = await watcher.frame()
            assert list(comment) == [""] and comment[""].startswith("ping")


# -- who does not keep up


async def test_client_that_falls_behind_gets_lost_and_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``lost`` the current entries are sent, and no older event."""
    monkeypatch.setattr("gateway.fleet.changes.BACKLOG", 4)
    async with rig() as rigged:
        fleet = rigged.app.fleet
        a = join(fleet, "a")
        async with watching(rigged.client) as watcher:
            await watcher.event()
            await until(lambda: followers(fleet) == 1)
            for _ in range(2):
                fleet.apply_event(a, WorkerEvent.DIE)
                fleet.apply_event(a, WorkerEvent.SERVES)
            fleet.drain(a)
            b = join(fleet, "b")
            join(fleet, "c", WorkerState.DEAD)
            assert await watcher.event() == ("lost", {"workers": 2})
            assert await watcher.brief() == ("state", "http://b:1", "ready")
            assert await watcher.brief() == ("state", "http://c:1", "dead")
            fleet.drain(b)
            assert await watcher.brief() == ("state", "http://b:1", "draining")
            assert await watcher.brief() == ("left", "http://b:1", "gone")


@asynccontextmanager
async def stalled(rigged: Rig) -> AsyncIterator[RawClient]:
    """A client that does not read, while more is sent to it than its connection takes."""
    a = join(fleet := rigged.app.fleet, "a")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", rigged.port))
    watcher = RawClient(*await asyncio.open_connection(sock=sock, limit=4096))
    watcher.request(PATH, b"", method="GET")
    try:
        await watcher.head()
        (changes,) = fleet._followers._queues
        flip = {WorkerState.READY: WorkerEvent.DIE, WorkerState.DEAD: WorkerEvent.SERVES}
        async with asyncio.timeout(20):
            while changes.qsize() < 10:  # taken no more
                fleet.apply_event(a, flip[a.state], "x" * 100_000)
                await asyncio.sleep(0.001)
        yield watcher
    finally:
        watcher.leave(reset=True)


async def test_client_that_stops_reading_can_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and comments both wait for it, and both continue."""
    monkeypatch.setattr(events, "PING", 0.01)
    async with rig() as rigged, stalled(rigged) as watcher:
        async with watching(rigged.client) as reading:  # until comments were due to both
            await reading.event()
            for _ in range(3):
                await reading.frame()
        join(rigged.app.fleet, "b")
        async with asyncio.timeout(20):
            seen = b""
            while b"event: joined" not in seen:
                seen = seen[-100:] + await watcher.reader.read(2**16)


# -- the end


async def test_drain_ends_the_stream_with_a_complete_body_within_a_second() -> None:
    """Its line ends are those of the engines."""
    async with rig() as rigged:
        join(rigged.app.fleet, "a")
        async with watching(rigged.client) as watcher:
            rigged.app.lifecycle.drain()
            async with asyncio.timeout(1):
                text = await watcher.rest()
        assert "\r" not in text and text.endswith("}\n\n")
        refused = await rigged.client.get(PATH)
        assert (refused.status_code, refused.json()["message"]) == (503, "Service is draining")


async def test_drain_does_not_wait_for_a_client_that_stopped_reading() -> None:
    async with rig() as rigged, stalled(rigged):
        rigged.app.lifecycle.drain()
        await until(lambda: followers(rigged.app.fleet) == 0, 1)


async def test_sigterm_ends_stream_and_process() -> None:
    """In a real process; the body of the stream ends completely."""
    async with SimServer("sglang", SimConfig()) as sim, served(sim.url) as gateway:
        http = httpx.AsyncClient(base_url=gateway.url, trust_env=False)
        async with http, watching(http) as watcher:
            assert await watcher.brief() == ("state", sim.url, "ready")
            gateway.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):  # a second, where other work does not keep the cores
                assert await watcher.rest() == ""
        assert await asyncio.wait_for(gateway.process.wait(), 10) == 0


@pytest.mark.parametrize("reset", [False, True])
async def test_disconnect_of_the_client_leaves_no_task_behind(reset: bool) -> None:
    """No follower, and no task of the stream or of sse-starlette."""
    async with rig() as rigged:
        fleet = rigged.app.fleet
        before = asyncio.all_tasks()
        for _ in range(2):
            async with asking(rigged, reset=reset) as watcher:
                await watcher.head()
                await until(lambda: followers(fleet) == 1)
            await until(lambda: followers(fleet) == 0)
        await until(lambda: asyncio.all_tasks() <= before)


async def test_drain_of_one_gateway_ends_no_stream_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """sse-starlette has a flag for the whole process, which is set here."""
    async with rig() as one, rig() as other:
        async with watching(one.client) as ending, watching(other.client) as going_on:
            monkeypatch.setattr(AppStatus, "should_exit", True)
            one.app.lifecycle.drain()
            await ending.rest()
            join(other.app.fleet, "a")
            assert await going_on.brief() == ("joined", "http://a:1", "ready")
        async with watching(other.client) as another:
            assert await another.brief() == ("state", "http://a:1", "ready")


# -- HTTP


async def test_head_is_answered_without_following() -> None:
    async with rig() as rigged:
        reply = await rigged.client.head(PATH)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert followers(rigged.app.fleet) == 0


async def test_connection_header_does_not_contradict_itself() -> None:
    async with rig() as rigged:
        async with asking(rigged, ("connection", "close")) as watcher:
            lines = (await watcher.head()).lower().split(b"\r\n")
        assert [line for line in lines if line.startswith(b"connection:")] == [b"connection: close"]


async def test_change_of_a_card_is_an_event_with_the_new_card() -> None:
    async with SimServer("vllm", SimConfig()) as sim, rig(sim.url) as rigged:
        async with watching(rigged.client) as watcher:
            _, entry = await watcher.event()
            version = entry["card_version"]
            await rigged.client.post("/workers", json={"url": sim.url, "max_num_seqs": 7})
            event, entry = await watcher.event()
    assert (event, entry["card"]["max_num_seqs"], entry["card_version"]) == ("card", 7, version + 1)
