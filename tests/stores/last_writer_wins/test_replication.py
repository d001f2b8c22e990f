"""Every write reaches the other processes and the store."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.stores.base import StoreUnavailable
from gateway.stores.last_writer_wins import replication as module
from gateway.stores.last_writer_wins.map import Changes, LastWriterWinsMap, Updates
from gateway.stores.last_writer_wins.replication import Replication
from gateway.stores.memory import MemoryStore
from tests.support.gateway import until

pytestmark = pytest.mark.virtual_time

A, B = ("http://a:1", "held"), ("http://b:1", "held")
URLS = [(f"http://{number}:1", "held") for number in range(100)]


class Replica(MemoryStore):
    """Entries with their replication to a store and a peer, which are this as well.

    The store has what it gets once ``open`` is set, and fails while it is ``away``; the peer has it once
    ``peer_open`` is set.
    """

    keeps_cordons = True

    def __init__(self) -> None:
        super().__init__()
        self.entries = LastWriterWinsMap(lambda: 10, "w")
        self.replication = Replication(self.entries, self, self._receive, lambda key: key[1] != "unstored")
        self.written, self.received = list[Changes](), list[Changes]()
        self.tries, self.away = 0, False
        self.open, self.peer_open = asyncio.Event(), asyncio.Event()
        self.open.set()
        self.peer_open.set()

    async def write(self, *keys: tuple[str, str], present: bool = True) -> None:
        await self.replication.send(self.entries.edit(dict.fromkeys(keys, present)))

    async def write_cordons(self, updates: Updates) -> None:
        self.tries += 1
        await self.open.wait()
        if self.away:
            raise StoreUnavailable("away")
        self.written.append(presence(updates))

    async def _receive(self, updates: Updates) -> None:
        self.received.append(presence(updates))
        await self.peer_open.wait()


def presence(updates: Updates) -> Changes:
    return {key: entry.present for key, entry in updates.items()}


@pytest.fixture
async def replica() -> Replica:
    return Replica()


async def test_write_returns_once_the_peers_and_the_store_have_it(replica: Replica) -> None:
    replica.open.clear()
    replica.peer_open.clear()
    write = asyncio.ensure_future(replica.write(A))
    await until(lambda: replica.received == [{A: True}] and replica.tries == 1)
    replica.open.set()
    await until(lambda: replica.written == [{A: True}])
    assert not write.done()
    replica.peer_open.set()
    await write


async def test_concurrent_writes_are_stored_together(replica: Replica) -> None:
    """A fleet that is resumed is one write or two, not one for each worker."""
    replica.open.clear()
    writes = [asyncio.ensure_future(replica.write(key)) for key in URLS]
    await until(lambda: replica.tries == 1)
    replica.open.set()
    await asyncio.gather(*writes)
    assert len(replica.written) <= 2
    assert set().union(*replica.written) == set(URLS)


async def test_store_that_was_away_gets_the_latest_entries(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """No write waits for it meanwhile, and it is logged once."""
    replica.away = True
    await replica.write(A)
    for _ in range(50):
        await replica.write(B)
    await replica.write(A, present=False)
    assert replica.tries == 1 and "which workers are cordoned" in caplog.text
    await asyncio.sleep(10)
    replica.away = False
    await until(lambda: bool(replica.written))
    assert replica.written == [{A: False, B: True}]
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1
    await replica.write(A)
    assert replica.written[1:] == [{A: True}], "writes wait for it again"


async def test_entry_that_changes_while_it_is_stored_is_stored_again(replica: Replica) -> None:
    replica.open.clear()
    first = asyncio.ensure_future(replica.write(A))
    await until(lambda: replica.tries == 1)
    second = asyncio.ensure_future(replica.write(A, present=False))
    await asyncio.sleep(0)
    replica.open.set()
    await asyncio.gather(first, second)
    assert replica.written == [{A: True}, {A: False}]
    await replica.write(B)
    assert replica.written[2:] == [{B: True}], "what was stored is not stored again"


async def test_one_write_to_the_store_is_bounded(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has to be done within a second."""
    monkeypatch.setattr(module, "BATCH", 40)
    await replica.write(*URLS)
    assert [len(changes) for changes in replica.written] == [40, 40, 20]


async def test_updates_of_a_peer_are_stored_as_well(replica: Replica) -> None:
    """The peer may be dead by now. What only the processes of one gateway share is not stored, nor is
    anything in a store that keeps no cordons."""
    unstored = ("http://a:1", "unstored")
    replica.replication.store_in_background(replica.entries.edit({A: True, unstored: True}))
    await until(lambda: replica.written == [{A: True}])
    replica.replication.store_in_background({})
    await replica.write(unstored)
    assert replica.tries == 1 and replica.received == [{unstored: True}]
    replica.keeps_cordons = False
    await replica.write(B)
    assert replica.tries == 1 and replica.received[1:] == [{B: True}]


async def test_dropped_tombstones_are_not_stored(replica: Replica) -> None:
    """As long as a store is away, workers come and go."""
    replica.away = True
    for key in URLS:
        await replica.write(key)
        await replica.write(key, present=False)
    await until(lambda: len(replica.replication._unwritten) == 10)
    replica.away = False
    await until(lambda: bool(replica.written))
    assert replica.written == [dict.fromkeys(URLS[-10:], False)]
