"""Keeping leases alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from gateway.stores.base import StoreUnavailable
from gateway.stores.renewals import Renewals
from tests.support.gateway import until

URL = "http://w:1"
#: A lease in seconds that is renewed every 10 ms.
TTL = 0.03


class Scripted:
    """Renews as ``outcomes`` say, and then well."""

    def __init__(self, outcomes: Iterable[bool | StoreUnavailable] = ()) -> None:
        self.calls = 0
        self._outcomes = iter(outcomes)

    async def __call__(self) -> bool:
        self.calls += 1
        outcome = next(self._outcomes, True)
        if isinstance(outcome, StoreUnavailable):
            raise outcome
        return outcome

    def reached(self, calls: int) -> Callable[[], bool]:
        return lambda: self.calls >= calls


@pytest.fixture
async def renewals() -> AsyncIterator[Renewals]:
    renewals = Renewals()
    yield renewals
    await renewals.close()


async def test_lease_is_renewed_three_times_in_its_length(renewals: Renewals) -> None:
    renew, loop = Scripted(), asyncio.get_running_loop()
    started = loop.time()
    await renewals.start(URL, TTL, renew)
    await until(renew.reached(6))
    assert loop.time() - started >= 2 * TTL * 0.9


async def test_outage_is_borne_and_told_once(renewals: Renewals, caplog: pytest.LogCaptureFixture) -> None:
    renew = Scripted([True, StoreUnavailable("away"), StoreUnavailable("away"), True])
    with caplog.at_level(logging.INFO):
        await renewals.start(URL, TTL, renew)
        await until(renew.reached(6))
    assert [line.levelname for line in caplog.records] == ["WARNING", "INFO"]


async def test_record_that_was_taken_away_is_kept_no_more(renewals: Renewals) -> None:
    renew = Scripted([True, False])
    await renewals.start(URL, TTL, renew)
    await until(renew.reached(2))
    await asyncio.sleep(0.05)
    assert renew.calls == 2


async def test_new_lease_of_a_url_takes_the_place_of_the_old(renewals: Renewals) -> None:
    old, new = Scripted(), Scripted()
    await renewals.start(URL, TTL, old)
    await until(old.reached(1))
    await renewals.start(URL, TTL, new)
    calls = old.calls
    await until(new.reached(3))
    assert old.calls == calls


async def test_stop_is_for_one_url_and_close_for_all(renewals: Renewals) -> None:
    one, two = Scripted(), Scripted()
    await renewals.start(URL, TTL, one)
    await renewals.start("http://w:2", TTL, two)
    await until(one.reached(1))
    await renewals.stop(URL)
    await renewals.stop("http://never:1")
    calls, beyond = one.calls, two.calls + 2
    await until(two.reached(beyond))
    assert one.calls == calls
    await renewals.close()
    calls = two.calls
    await asyncio.sleep(0.05)
    assert two.calls == calls
