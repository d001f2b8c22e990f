"""Telling marks to the other processes and to the store."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from gateway.fleet.cordons import cordons as marks_module
from gateway.fleet.cordons import replication as module
from gateway.fleet.cordons.cordons import HELD, REMOVED, Changes, Cordons
from gateway.fleet.cordons.replication import CordonReplication
from gateway.fleet.registry import Fleet
from gateway.routing.policy import LeastInFlight
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.versioned import Updates, Versioned
from tests.support.gateway import until

A, B = "http://a:1", "http://b:1"


class Keeping(MemoryStore):
    """Notes what it is to keep; takes it once ``open`` is set, fails while it is ``away``."""

    keeps_cordons = True
    away = False

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Changes] = []
        self.tries = 0
        self.open = asyncio.Event()
        self.open.set()

    async def write_cordons(self, edits: Updates) -> None:
        self.tries += 1
        await self.open.wait()
        if self.away:
            raise StoreUnavailable("away")
        self.written.append(wishes(edits))


def wishes(edits: Updates) -> Changes:
    """What they are, without who said so when."""
    return {url: {word: said.present for word, said in words.items()} for url, words in edits.items()}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN", 0.02)


def made(store: MemoryStore) -> CordonReplication:
    return CordonReplication(Cordons(Fleet(LeastInFlight(Random(0)), 1.0)), store)


async def test_edit_returns_once_the_others_and_the_store_know() -> None:
    store = Keeping()
    store.open.clear()
    sharing, answered = made(store), asyncio.Event()
    told: list[Updates] = []

    async def others(edits: Updates) -> None:
        told.append(edits)
        await answered.wait()

    sharing.to_processes = others
    edit = asyncio.ensure_future(sharing.edit({A: {HELD: True}}))
    await until(lambda: bool(told) and store.tries == 1)
    assert sharing.marks.of(A) == {HELD}, "here it counts at once"
    store.open.set()
    await until(lambda: bool(store.written))
    assert not edit.done()
    answered.set()
    await asyncio.wait_for(edit, 5)
    await sharing.close()


async def test_edits_at_one_time_are_written_together() -> None:
    """A fleet that is resumed is one write or two, not one for each worker."""
    store = Keeping()
    store.open.clear()
    sharing = made(store)
    edits = [asyncio.ensure_future(sharing.edit({f"http://{n}:1": {HELD: True}})) for n in range(100)]
    await until(lambda: store.tries == 1)
    store.open.set()
    await asyncio.gather(*edits)
    assert len(store.written) <= 2
    assert set().union(*store.written) == {f"http://{n}:1" for n in range(100)}
    await sharing.close()


@pytest.mark.usefixtures("quick")
async def test_store_that_was_away_gets_what_counts_by_then() -> None:
    """Nobody waits for it meanwhile."""
    store = Keeping()
    store.away = True
    sharing = made(store)
    await sharing.edit({A: {HELD: True}})
    for _ in range(50):
        await sharing.edit({B: {HELD: True}})
    await sharing.edit({A: {HELD: False}})
    store.away = False
    await until(lambda: bool(store.written))
    assert store.written[0] == {A: {HELD: False}, B: {HELD: True}}
    await sharing.close()


@pytest.mark.usefixtures("quick")
async def test_what_was_said_since_a_write_is_written_as_well() -> None:
    """In a further write: the one that is under way had what was said before."""
    store = Keeping()
    store.open.clear()
    sharing = made(store)
    first = asyncio.ensure_future(sharing.edit({A: {HELD: True}}))
    await until(lambda: store.tries == 1)
    second = asyncio.ensure_future(sharing.edit({A: {HELD: False}}))
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(first, second)
    assert store.written == [{A: {HELD: True}}, {A: {HELD: False}}]
    await sharing.edit({B: {HELD: True}})
    assert store.written[2:] == [{B: {HELD: True}}], "what was written is not written again"
    await sharing.close()


async def test_write_has_an_end_however_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has to be done within a second."""
    monkeypatch.setattr(module, "BATCH", 40)
    store = Keeping()
    sharing = made(store)
    await sharing.edit({f"http://{number}:1": {HELD: True} for number in range(100)})
    assert [len(edits) for edits in store.written] == [40, 40, 20]
    await sharing.close()


async def test_what_another_process_says_is_written_once_as_well() -> None:
    """Whoever was told first may be dead by now. A removal is no matter of the store."""
    store = Keeping()
    sharing = made(store)
    edits = {A: {HELD: Versioned(7, "other", True), REMOVED: Versioned(7, "other", True)}}
    for _ in range(2):
        sharing.heard(edits)
        await until(lambda: store.written == [{A: {HELD: True}}])
    await asyncio.sleep(0.02)
    assert store.tries == 1
    await sharing.close()


async def test_what_a_probe_finds_is_told_to_all() -> None:
    """Else some would hold a worker that others do not."""
    store, told = Keeping(), []
    sharing = made(store)

    async def others(edits: Updates) -> None:
        told.append(wishes(edits))

    sharing.to_processes = others
    sharing.heard({A: {HELD: Versioned(7, "other", True)}})
    await until(lambda: bool(store.written))
    sharing.marks.lift(A, held=True)
    await until(lambda: store.written[1:] == [{A: {HELD: False}}] == told)
    await sharing.close()


async def test_store_that_keeps_no_marks_is_left_alone() -> None:
    """What was said is known in this process all the same."""
    store = Keeping()
    store.keeps_cordons = False
    sharing = made(store)
    await sharing.edit({A: {HELD: True}})
    sharing.heard({B: {HELD: Versioned(7, "other", True)}})
    assert wishes(sharing.marks.all) == {A: {HELD: True}, B: {HELD: True}}
    assert not store.tries


@pytest.mark.usefixtures("quick")
async def test_what_is_remembered_by_nobody_is_not_written_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a store is away, workers come and go."""
    monkeypatch.setattr(marks_module, "LIFTED", 10)
    store = Keeping()
    store.away = True
    sharing = made(store)
    for number in range(200):
        await sharing.edit({f"http://{number}:1": {HELD: True}})
        await sharing.edit({f"http://{number}:1": {HELD: False}})
    await until(lambda: len(sharing._unwritten) == 10)
    store.away = False
    await until(lambda: bool(store.written) and not sharing._unwritten)
    await sharing.close()
