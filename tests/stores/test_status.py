"""The connection state of a store, and its log lines."""

from __future__ import annotations

import logging

import pytest

from gateway.stores.status import Status


def test_store_is_not_connected_at_first() -> None:
    status = Status("it")
    assert (status.healthy, status.reason) == (False, "not reached yet")


def test_each_change_of_state_or_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    status = Status("it")
    with caplog.at_level(logging.INFO):
        for reason in ("", "", "a", "a", ""):
            status.disconnected(reason) if reason else status.connected()
        status.disconnected("a")
        status.disconnected("b")
    assert [line.levelname for line in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING", "WARNING"]
    assert (status.healthy, status.reason) == (False, "b")


def test_reason_ends_with_the_outage() -> None:
    status = Status("it")
    status.disconnected("a")
    status.connected()
    assert (status.healthy, status.reason) == (True, "")
