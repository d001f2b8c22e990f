"""The endpoint suite can fail: it finds breaks that only a complete gateway shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.formats.contract import ErrorReply
from gateway.formats.registry import load_formats
from gateway.testing.endpoint import EndpointContract
from tests.plugins.echo.tests import test_contract as sample
from tests.testing.support import Break, chokes, respells, shows_the_private_tag


def renders_pages(format: Any) -> None:
    """Renders errors as HTML."""
    format.render = lambda self, error: ErrorReply(error.status, [(b"content-type", b"text/html")], b"{}")


Test = Callable[[EndpointContract], Any]
BROKEN: tuple[tuple[Break, Test], ...] = (
    (renders_pages, EndpointContract.test_fleet_without_a_worker_is_refused_in_the_dialect),
    (renders_pages, EndpointContract.test_body_over_the_limit_is_refused_in_the_dialect),
    (renders_pages, EndpointContract.test_malformed_unary_reply_is_a_failure_in_the_dialect),
    (respells, EndpointContract.test_stream_comes_back_as_the_worker_sent_it),
    (shows_the_private_tag, EndpointContract.test_same_id_twice_in_flight_is_isolated),
    (chokes, lambda suite: suite.test_body_that_is_no_request_is_refused_in_the_dialect(b"{")),
)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("break_it", "test"), BROKEN)
async def test_broken_format_is_found_out(
    break_it: Break, test: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is imported anew for each test, so the changes do not last."""
    break_it(type(load_formats()["echo"]))
    suite = sample.TestEchoEndpoint()
    monkeypatch.setattr(sample.TestEchoEndpoint, "model", sample.EchoModel())
    with pytest.raises(AssertionError):
        await test(suite)
