"""Draining: what runs goes on, what comes is refused, and the last one out is noticed."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Cancelled, Draining
from gateway.proxy.lifecycle import Lifecycle


class Exchange:
    """An open exchange that ends one loop iteration after it is interrupted."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.reasons: list[BaseException] = []
        lifecycle.enter(self)

    def interrupt(self, reason: BaseException) -> None:
        self.reasons.append(reason)
        asyncio.get_running_loop().call_soon(self.lifecycle.leave, self)


async def test_each_open_exchange_counts_once_until_it_leaves_even_twice() -> None:
    lifecycle = Lifecycle()
    exchanges = [Exchange(lifecycle) for _ in range(3)]
    assert lifecycle.open_exchanges == 3
    for exchange in (*exchanges, exchanges[0]):
        lifecycle.leave(exchange)
    assert lifecycle.open_exchanges == 0


async def test_draining_refuses_what_comes_and_keeps_what_runs() -> None:
    lifecycle = Lifecycle()
    running = [Exchange(lifecycle) for _ in range(2)]
    lifecycle.drain()
    with pytest.raises(Draining):
        Exchange(lifecycle)
    assert lifecycle.open_exchanges == 2, "what was refused leaves no trace"
    assert [exchange.reasons for exchange in running] == [[], []]


async def test_end_interrupts_one_open_exchange_and_no_other() -> None:
    lifecycle = Lifecycle()
    one, other, over = (Exchange(lifecycle) for _ in range(3))
    lifecycle.leave(over)
    reason = Cancelled("left")
    lifecycle.end(one, reason)
    lifecycle.end(over, reason)
    assert (one.reasons, other.reasons, over.reasons) == ([reason], [], [])


async def test_cut_ends_all_because_of_the_shutdown_and_waits_until_they_have_released() -> None:
    lifecycle = Lifecycle()
    exchanges = [Exchange(lifecycle) for _ in range(3)]
    await lifecycle.cut()
    assert lifecycle.open_exchanges == 0
    assert all(type(reason) is Draining for exchange in exchanges for reason in exchange.reasons)
    await lifecycle.cut()


async def test_control_call_is_waited_for_and_does_not_count_as_an_exchange() -> None:
    """It gives what its work comes to, counts for a drain, and neither fills nor obeys the limit."""
    lifecycle = Lifecycle(max_open=1)
    over = asyncio.Event()

    async def work() -> str:
        await over.wait()
        return "done"

    call = asyncio.ensure_future(lifecycle.run_control_call(work()))
    await asyncio.sleep(0)
    exchange = Exchange(lifecycle)
    assert (lifecycle.running, lifecycle.open_exchanges) == (2, 1)
    lifecycle.drain()
    late = asyncio.ensure_future(lifecycle.run_control_call(work()))
    await asyncio.sleep(0)
    over.set()
    assert (await call, await late) == ("done", "done")
    lifecycle.leave(exchange)
    assert lifecycle.running == 0


async def test_control_call_that_is_cut_raises_draining_and_a_cancelled_one_does_not() -> None:
    lifecycle = Lifecycle()
    cut, cancelled = (asyncio.ensure_future(lifecycle.run_control_call(asyncio.sleep(60))) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await lifecycle.cut()
    with pytest.raises(Draining):
        await cut
    assert lifecycle.running == 0
