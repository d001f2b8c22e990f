"""The error type that each ending of a reply has in log and metrics."""

from __future__ import annotations

import pytest

from gateway.errors import Cancelled, GatewayError, NotReceived, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending
from tests.telemetry.support import completed, dispatched, failed

FAILURES = {"ENGINE_ABORT", "ERROR_EVENT", "ERROR_STATUS", "INCOMPLETE", "MALFORMED"}


@pytest.mark.parametrize("ending", Ending)
def test_error_type_of_a_complete_reply_is_that_of_its_status_or_else_of_its_ending(ending: Ending) -> None:
    own = "internal" if ending.name in FAILURES else ""
    for status, error_type in ((None, own), ("", own), ("validation", "validation"), ("other", "other")):
        assert completed(ending=ending, reply_error=status).error_type == error_type


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (UpstreamIncomplete("cut"), Ending.INCOMPLETE),
        (UpstreamMalformed("nonsense"), Ending.MALFORMED),
        (NotReceived("never sent"), None),
        (Cancelled("left"), None),
        (GatewayError("a fault"), None),
    ],
)
def test_failure_is_the_ending_of_a_reply_only_if_a_reply_had_begun(
    error: GatewayError, ending: Ending | None
) -> None:
    assert failed(error, dispatched()).ending is ending


def test_ending_read_from_the_bytes_is_not_replaced_by_the_failure() -> None:
    exchange = dispatched(ending=Ending.ERROR_EVENT)
    assert failed(UpstreamIncomplete("cut"), exchange).ending is Ending.ERROR_EVENT


def test_disconnect_after_the_end_of_the_reply_is_a_cancellation() -> None:
    exchange = failed(Cancelled("left"), dispatched(ending=Ending.STOP))
    assert (exchange.ending, exchange.error_type) == (Ending.STOP, "cancelled")
