"""What one process is told of its workers, played through without a supervisor's process."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import pytest

from gateway.fleet.cordons import BY_OWNER, DISMISSED, Cordons, paused
from gateway.fleet.members import FleetMembership
from gateway.prefork.frames import Frame, FrameParser, Verb
from gateway.prefork.hub import Hub
from gateway.prefork.peers import Peers
from gateway.prefork.replication import PeerCordons, send_cordons
from gateway.stores.memory import MemoryStore
from gateway.stores.record import WorkerRecord
from tests.fleet.support import ProbedWorkers, fleet_of
from tests.support.gateway import until

URL = "http://w:1"
PAUSE = paused("generation", "generation")


class Process:
    """One of several, with the supervisor's end of its channel."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        self.channel = ours
        self.peers = Peers(theirs)
        send_to_peers = partial(send_cordons, self.peers)
        self.fleet = fleet_of()
        self.cordons = Cordons(self.fleet, MemoryStore(), send_to_peers)
        health: Any = ProbedWorkers()
        self.members = FleetMembership(self.fleet, health, None, self.cordons)
        self.peer_cordons = PeerCordons(self.peers, self.cordons, self.members)

    @property
    def reasons(self) -> object:
        """The reasons that are present, by URL."""
        return {url: self.cordons.of(url) for url, _ in self.cordons.entries if self.cordons.of(url)}


class Supervised:
    """Processes, and a hub between them that is served for as long as the context lasts."""

    def __init__(self, count: int) -> None:
        self.processes = [Process() for _ in range(count)]
        self.hub = Hub(count, self._send, lambda before, counts: counts)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> list[Process]:
        for number, process in enumerate(self.processes):
            self.hub.process_started(number, replacement=False)
            self.hub.on_frame(number, Frame(Verb.SERVING), 0.0)
            await process.peers.open()
            self._tasks.append(asyncio.ensure_future(self._serve(number)))
        return self.processes

    async def __aexit__(self, *raised: object) -> None:
        for process in self.processes:
            await process.peers.close()
        await asyncio.gather(*self._tasks)

    def _send(self, number: int, frame: Frame) -> bool:
        self.processes[number].channel.send(frame.encode())
        return True

    async def _serve(self, number: int) -> None:
        frames, channel = FrameParser(), self.processes[number].channel
        while data := await asyncio.get_running_loop().sock_recv(channel, 65536):
            for frame in frames.feed(data):
                self.hub.on_frame(number, frame, 0.0)
        channel.close()


async def test_every_process_has_a_cordon_before_its_write_returns() -> None:
    """A worker is not called before no process gives it requests any more."""
    async with Supervised(3) as processes:
        await processes[1].cordons.write({(URL, PAUSE): True})
        assert [process.reasons for process in processes] == [{URL: {PAUSE}}] * 3
        await processes[2].cordons.write({(URL, PAUSE): False})
        assert [process.reasons for process in processes] == [{}] * 3


async def test_process_that_starts_later_learns_the_cordons() -> None:
    async with Supervised(2) as (old, new):
        old.cordons._edit({(URL, BY_OWNER): True})
        await new.peer_cordons.fetch()
        assert new.reasons == {URL: {BY_OWNER}}


async def test_concurrent_pause_and_resume_end_alike_in_all_processes() -> None:
    async with Supervised(3) as processes:
        for _ in range(20):
            await asyncio.gather(
                processes[0].cordons.write({(URL, PAUSE): True}),
                processes[1].cordons.write({(URL, PAUSE): False}),
            )
            assert len({str(process.reasons) for process in processes}) == 1


async def test_write_counts_here_although_the_supervisor_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged."""
    async with Supervised(1) as (alone,):
        alone.channel.shutdown(socket.SHUT_WR)
        await until(lambda: alone.peers.supervisor_lost)
        await alone.cordons.write({(URL, BY_OWNER): True})
        await alone.peer_cordons.fetch()
    assert alone.reasons == {URL: {BY_OWNER}}
    assert "may not know which workers are cordoned" in caplog.text and "not known which" in caplog.text


async def test_worker_that_one_process_dismissed_leaves_all_of_them() -> None:
    async with Supervised(2) as processes:
        for process in processes:
            process.members.pin(WorkerRecord(URL))
        processes[0].members.dismiss(URL)
        await processes[0].cordons.write({(URL, DISMISSED): True})
        assert not any(process.fleet.workers for process in processes)
        processes[1].members.pin(WorkerRecord(URL))
        assert not processes[1].fleet.workers, "as long as nobody registers it again"
