"""The shared timers."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from gateway.sim.pacer import Pacer

pytestmark = pytest.mark.virtual_time


async def test_steps_come_in_the_order_of_their_delays() -> None:
    """However they were given, and none before its time."""
    loop = asyncio.get_running_loop()
    pacer, done, over = Pacer(), list[tuple[str, float]](), asyncio.Event()
    start = loop.time()

    def note(name: str) -> None:
        done.append((name, loop.time() - start))

    for name, delay in (("c", 0.03), ("a", 0.0), ("b", 0.01)):
        pacer.after(delay, partial(note, name))
    pacer.after(0.04, over.set)
    await over.wait()
    assert [name for name, _ in done] == ["a", "b", "c"]
    assert dict(done)["b"] >= 0.009 and dict(done)["c"] >= 0.029


async def test_shorter_delay_given_later_comes_first() -> None:
    """The timer of the loop is moved forward."""
    pacer, done = Pacer(), asyncio.Event()
    pacer.after(60, lambda: None)
    pacer.after(0.005, done.set)
    async with asyncio.timeout(1):
        await done.wait()
    pacer.stop()


async def test_cancelled_step_is_not_made() -> None:
    pacer, made, over = Pacer(), list[str](), asyncio.Event()
    pacer.after(0.002, lambda: made.append("cancelled")).cancel()
    pacer.after(0, lambda: made.append("also")).cancel()
    pacer.after(0.005, over.set)
    await over.wait()
    pacer.after(0.001, lambda: made.append("stopped"))
    pacer.stop()
    await asyncio.sleep(0.005)
    assert made == []
