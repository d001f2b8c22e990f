"""The writes of one iteration of the event loop are sent together, in their order."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gateway.loop.write_batch import MAX_BYTES, MAX_WRITES, SAMPLE_INTERVAL, SINGLE_WRITES, WriteBatch


class Wire:
    """A transport that adds what is written to a list, which it shares with others."""

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


async def test_first_write_of_an_iteration_is_sent_at_once_and_the_others_at_its_end() -> None:
    write_batch, (sent, (one, two)) = WriteBatch(), wires(2)
    for iteration in (b"1", b"2"):
        write_batch.write(one, b"a" + iteration)
        write_batch.write(two, b"b" + iteration)
        write_batch.write(one, b"c" + iteration)
        assert sent == [b"a" + iteration]
        await asyncio.sleep(0)
        assert sent == [b"a" + iteration, b"b" + iteration, b"c" + iteration]
        sent.clear()


async def test_delayed_writes_are_bounded_in_number_and_bytes() -> None:
    write_batch, (sent, (wire,)) = WriteBatch(), wires(1)
    for number in range(MAX_WRITES + 1):
        write_batch.write(wire, b"%d" % number)
    assert len(sent) == MAX_WRITES + 1
    write_batch.write(wire, b"x" * MAX_BYTES)
    assert len(sent) == MAX_WRITES + 2


async def test_large_parts_are_sent_at_once_and_uncopied_after_the_delayed_writes() -> None:
    write_batch, (sent, (one, two)) = WriteBatch(), wires(2)
    for wire, data in ((one, b"1"), (two, b"2")):
        write_batch.write(wire, data)
    large = bytes(100)
    write_batch.write_parts(one, (b"3", large))
    assert sent == [b"1", b"2", b"3", large]
    assert sent[-1] is large


async def test_delayed_writes_to_a_closed_transport_are_dropped() -> None:
    write_batch, (sent, (one, two)) = WriteBatch(), wires(2)
    write_batch.write(one, b"1")
    write_batch.write(two, b"2")
    write_batch.write(one, b"3")
    two.closing = True
    await asyncio.sleep(0)
    assert sent == [b"1", b"3"]


async def test_iterations_with_one_write_each_are_sampled_only() -> None:
    """Noticing the end of an iteration costs another iteration."""
    write_batch, (sent, (wire,)) = WriteBatch(), wires(1)
    for _ in range(SINGLE_WRITES):
        write_batch.write(wire, b"x")
        await asyncio.sleep(0)
    sent.clear()
    for _ in range(SAMPLE_INTERVAL + 1):
        write_batch.write(wire, b"at once")
    assert len(sent) == SAMPLE_INTERVAL + 1
    write_batch.write(wire, b"delayed")
    assert len(sent) == SAMPLE_INTERVAL + 1
    await asyncio.sleep(0)
    assert sent[-1] == b"delayed"
    write_batch.write(wire, b"at once")
    write_batch.write(wire, b"delayed")
    assert sent[-1] == b"at once"
