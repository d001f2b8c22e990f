"""Parts of error replies that all formats share."""

from __future__ import annotations

import pytest

from gateway.errors import Draining, GatewayError, InvalidRequest, NoWorker, UnknownModel
from gateway.formats.failures import error_event, error_reply, param_of


def test_reply_has_the_errors_status_and_its_retry_after() -> None:
    error = Draining("later")
    reply = error_reply(error, b"{}")
    assert (reply.status, reply.body) == (503, b"{}")
    assert reply.headers == [
        (b"content-type", b"application/json"),
        (b"retry-after", b"%d" % (error.retry_after or 0)),
    ]


def test_reply_to_what_no_waiting_helps_says_nothing_of_it() -> None:
    assert error_reply(InvalidRequest("bad"), b"{}").headers == [(b"content-type", b"application/json")]


def test_event_ends_its_stream() -> None:
    assert error_event(b'{"a":1}') == b'data: {"a":1}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("error", "field"),
    [(InvalidRequest("m", param="ids"), "ids"), (UnknownModel("m"), "model"), (NoWorker("m"), None)],
)
def test_field_at_fault_is_that_of_the_error(error: GatewayError, field: str | None) -> None:
    assert param_of(error) == field
