"""Whether a store is in touch, and who is told."""

from __future__ import annotations

import logging

import pytest

from gateway.stores.status import Status


def test_store_begins_out_of_touch() -> None:
    status = Status("it")
    assert (status.healthy, status.reason) == (False, "not reached yet")


def test_each_turn_is_one_line_and_the_same_again_none(caplog: pytest.LogCaptureFixture) -> None:
    status = Status("it")
    with caplog.at_level(logging.INFO):
        for turn in (status.up, status.up, lambda: status.down("a"), lambda: status.down("a"), status.up):
            turn()
        status.down("a")
        status.down("b")
    assert [line.levelname for line in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING", "WARNING"]
    assert (status.healthy, status.reason) == (False, "b")


def test_reason_goes_with_the_outage() -> None:
    status = Status("it")
    status.down("a")
    status.up()
    assert (status.healthy, status.reason) == (True, "")
