"""Renewal of records with a TTL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from gateway.stores.base import StoreUnavailable
from gateway.stores.renewals import Renewals

pytestmark = pytest.mark.virtual_time

URL = "http://w:1"
#: In seconds, on virtual time.
TTL = 30.0


class Scripted:
    """A renewal with scripted outcomes, which succeeds after them. None: the store is away."""

    def __init__(self, *outcomes: bool | None) -> None:
        self.calls = 0
        self._outcomes = iter(outcomes)

    async def __call__(self) -> bool:
        self.calls += 1
        if (outcome := next(self._outcomes, True)) is None:
            raise StoreUnavailable("away")
        return outcome


@pytest.fixture
async def renewals() -> AsyncIterator[Renewals]:
    renewals = Renewals()
    yield renewals
    await renewals.close()


async def test_failed_renewal_is_retried_each_second_and_logged_once(
    renewals: Renewals, caplog: pytest.LogCaptureFixture
) -> None:
    """Until somebody has removed the record."""
    renew = Scripted(True, None, None, True, False)
    with caplog.at_level(logging.INFO):
        await renewals.start(URL, TTL, renew)
        await asyncio.sleep(2 * TTL / 3 + 3)
    assert renew.calls == 4
    assert [line.levelname for line in caplog.records] == ["WARNING", "INFO"]
    await asyncio.sleep(3 * TTL)
    assert renew.calls == 5


async def test_new_renewal_of_a_url_replaces_the_old_one(renewals: Renewals) -> None:
    old, new = Scripted(), Scripted()
    await renewals.start(URL, TTL, old)
    await asyncio.sleep(TTL / 2)
    await renewals.start(URL, TTL, new)
    await asyncio.sleep(TTL + 1)
    assert (old.calls, new.calls) == (1, 3)


async def test_stop_is_for_one_url_and_close_for_all(renewals: Renewals) -> None:
    one, two = Scripted(), Scripted()
    await renewals.start(URL, TTL, one)
    await renewals.start("http://w:2", TTL, two)
    await asyncio.sleep(TTL / 2)
    await renewals.stop(URL)
    await renewals.stop("http://never:1")
    await asyncio.sleep(TTL)
    await renewals.close()
    await asyncio.sleep(TTL)
    assert (one.calls, two.calls) == (1, 4)
