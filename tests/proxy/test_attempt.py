"""What the end of an attempt says about its worker."""

from __future__ import annotations

import pytest

from gateway.errors import Cancelled, GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.fleet.replies import ReplyOutcome
from gateway.fleet.worker import Worker
from gateway.formats.contract import ReplyHead
from gateway.loop.write_batch import WriteBatch
from gateway.proxy.attempt import Attempt
from gateway.upstream.address import Address
from gateway.upstream.connection import Connection
from gateway.upstream.read_buffer import READ_SIZE

GOOD, FAILED, REFUSED, UNKNOWN = (
    ReplyOutcome.GOOD,
    ReplyOutcome.FAILED,
    ReplyOutcome.REFUSED,
    ReplyOutcome.UNKNOWN,
)


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize(
    ("outcome", "statuses"),
    [
        (GOOD, (200, 201, 204, 302, 399)),
        (REFUSED, (400, 405, 409, 413, 422, 499)),
        (FAILED, (401, 403, 500, 502, 599)),
        (UNKNOWN, (429, 503)),
    ],
)
def test_status_says_whether_the_worker_or_the_request_is_at_fault(
    outcome: ReplyOutcome, statuses: tuple[int, ...], relayed: bool
) -> None:
    assert {status: _of(status, relayed=relayed) for status in statuses} == dict.fromkeys(statuses, outcome)


def test_404_is_a_failure_except_of_a_route_that_not_every_engine_has() -> None:
    assert (_of(404, relayed=False), _of(404, relayed=True)) == (FAILED, REFUSED)


def test_broken_reply_is_the_worker_s_and_a_client_that_left_is_nobody_s() -> None:
    ends = (UpstreamIncomplete("x"), UpstreamMalformed("x"), Cancelled("x"))
    assert [_of(200, error=end) for end in ends] == [ReplyOutcome.BROKEN, ReplyOutcome.BROKEN, UNKNOWN]


def _of(status: int, *, error: GatewayError | None = None, relayed: bool = False) -> ReplyOutcome:
    connection = Connection(bytearray(READ_SIZE), WriteBatch())
    attempt = Attempt(Worker(Address.parse("http://127.0.0.1:1")), object(), connection)
    attempt.head = ReplyHead(status, [])
    return attempt.outcome(error, relayed=relayed)
