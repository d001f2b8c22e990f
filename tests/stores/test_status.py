"""The connection state of a store, and its log lines."""

from __future__ import annotations

import logging

import pytest

from gateway.stores.status import Status


def test_each_change_of_state_or_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    status = Status("it")
    assert (status.healthy, status.reason) == (False, "not reached yet")
    with caplog.at_level(logging.INFO):
        for reason in ("", "", "a", "a", ""):
            status.disconnected(reason) if reason else status.connected()
            assert (status.healthy, status.reason) == (not reason, reason)
        status.disconnected("a")
        status.disconnected("b")
    assert [line.levelname for line in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING", "WARNING"]
    assert (status.healthy, status.reason) == (False, "b")
