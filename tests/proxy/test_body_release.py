"""What is large goes after a while: in order, a step in a turn, and never of an exchange that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gateway.proxy.body_release import BodyRelease
from tests.support.gateway import until

AFTER = 0.02


class Large:
    """Needs ``steps`` to let go, after it was asked ``early`` times too early."""

    def __init__(self, steps: int = 1, early: int = 0) -> None:
        self.steps = steps
        self.early = early
        self.gone = asyncio.Event()
        self.done = 0

    def release_body(self) -> Iterator[None] | None:
        if self.early:
            self.early -= 1
            return None
        return self._release()

    def _release(self) -> Iterator[None]:
        for _ in range(self.steps):
            self.done += 1
            yield
        self.gone.set()


async def within(large: Large, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        await large.gone.wait()


async def test_all_are_asked_one_after_the_other_in_their_order() -> None:
    release = BodyRelease(AFTER)
    larges = [Large(steps=3) for _ in range(5)]
    for large in larges:
        release.add(large)
    assert len(release) == 5
    while not larges[-1].gone.is_set():
        gone = [large.gone.is_set() for large in larges]
        assert sum(large.done > 0 for large in larges) - sum(gone) <= 1
        assert gone == sorted(gone, reverse=True)
        await asyncio.sleep(0)
    assert len(release) == 0


async def test_one_that_still_needs_it_is_asked_again() -> None:
    release, waits, other = BodyRelease(AFTER), Large(early=2), Large()
    release.add(waits)
    release.add(other)
    await within(other)
    assert not waits.gone.is_set() and len(release) == 1
    await within(waits)


async def test_one_that_is_over_is_asked_nothing_and_not_held() -> None:
    """Before its time and in the midst of it; it may be dropped twice."""
    release, before, amidst = BodyRelease(AFTER), Large(), Large(steps=1_000_000)
    release.add(before)
    release.add(amidst)
    release.remove(before)
    await until(lambda: amidst.done > 0)
    release.remove(amidst)
    release.remove(amidst)
    done = amidst.done
    assert len(release) == 0
    await asyncio.sleep(0.01)
    assert (before.done, amidst.done) == (0, done)
    again = Large()
    release.add(again)
    await within(again)


async def test_one_that_fails_keeps_no_other_from_it() -> None:
    class Broken(Large):
        def _release(self) -> Iterator[None]:
            yield
            raise RuntimeError("a format broke its contract")

    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: failed.append(context["exception"])
    )
    release, broken, other = BodyRelease(AFTER), Broken(), Large()
    release.add(broken)
    release.add(other)
    await within(other)
    assert len(release) == 0 and len(failed) == 1
