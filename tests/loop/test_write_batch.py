"""Writes of one turn leave together, each before anything could miss it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gateway.loop.write_batch import ALONE, LOOK_EACH, MOST_BYTES, MOST_WRITES, WriteBatch


class Wire:
    """Stands for a transport, and notes what was sent in which order over all of them."""

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent
        self.closing = False

    def write(self, data: bytes) -> None:
        self._sent.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self._sent.extend(parts)

    def is_closing(self) -> bool:
        return self.closing


def wires(count: int) -> tuple[list[bytes], list[Any]]:
    sent: list[bytes] = []
    return sent, [cast(Any, Wire(sent)) for _ in range(count)]


async def test_first_write_of_a_turn_leaves_at_once_and_the_others_at_its_end() -> None:
    write_batch, (sent, (one, two)) = WriteBatch(), wires(2)
    for turn in (b"1", b"2"):
        write_batch.write(one, b"a" + turn)
        write_batch.write(two, b"b" + turn)
        write_batch.write(one, b"c" + turn)
        assert sent == [b"a" + turn]
        await asyncio.sleep(0)
        assert sent == [b"a" + turn, b"b" + turn, b"c" + turn]
        sent.clear()


async def test_what_is_put_off_is_bounded_in_number_and_bytes() -> None:
    write_batch, (sent, (wire,)) = WriteBatch(), wires(1)
    for number in range(MOST_WRITES + 1):
        write_batch.write(wire, b"%d" % number)
    assert len(sent) == MOST_WRITES + 1
    write_batch.write(wire, b"x" * MOST_BYTES)
    assert len(sent) == MOST_WRITES + 2


async def test_flush_sends_what_was_put_off_in_its_order() -> None:
    write_batch, (sent, (one, two)) = WriteBatch(), wires(2)
    for wire, data in ((one, b"1"), (two, b"2"), (one, b"3")):
        write_batch.write(wire, data)
    write_batch.flush()
    assert sent == [b"1", b"2", b"3"]


async def test_large_parts_leave_at_once_and_uncopied_behind_what_was_put_off() -> None:
    write_batch, (sent, (one, two)) = WriteBatch(), wires(2)
    for wire, data in ((one, b"1"), (two, b"2")):
        write_batch.write(wire, data)
    large = bytes(100)
    write_batch.write_parts(one, (b"3", large))
    assert sent == [b"1", b"2", b"3", large]
    assert sent[-1] is large


async def test_closed_transport_gets_nothing_more() -> None:
    write_batch, (sent, (one, two)) = WriteBatch(), wires(2)
    write_batch.write(one, b"1")
    write_batch.write(two, b"2")
    write_batch.write(one, b"3")
    two.closing = True
    await asyncio.sleep(0)
    assert sent == [b"1", b"3"]


async def test_turns_of_one_write_are_left_alone_until_there_are_several_again() -> None:
    """To learn of a turn's end costs another turn."""
    write_batch, (sent, (wire,)) = WriteBatch(), wires(1)
    for _ in range(ALONE):
        write_batch.write(wire, b"x")
        await asyncio.sleep(0)
    sent.clear()
    for _ in range(LOOK_EACH + 1):
        write_batch.write(wire, b"at once")
    assert len(sent) == LOOK_EACH + 1
    write_batch.write(wire, b"put off")
    assert len(sent) == LOOK_EACH + 1
    await asyncio.sleep(0)
    assert sent[-1] == b"put off"
    write_batch.write(wire, b"at once")
    write_batch.write(wire, b"put off")
    assert sent[-1] == b"at once"
