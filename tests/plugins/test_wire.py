"""The endpoint suite can fail: it finds breaks that only a complete gateway shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.formats.contract import ErrorReply, Ids, UpstreamRequest
from gateway.formats.registry import load_formats
from gateway.testing.endpoint import EndpointContract
from tests.plugins.echo.tests import test_contract as sample


def renders_pages(format: Any) -> None:
    """Renders errors as HTML."""
    format.render = lambda self, error: ErrorReply(error.status, [(b"content-type", b"text/html")], b"{}")


def respells(format: Any) -> None:
    """Encodes the body again."""
    upstream = format.upstream

    def respelled(self: Any, request: Any, worker: Any, ids: Ids) -> UpstreamRequest:
        sent = upstream(self, request, worker, ids)
        return UpstreamRequest(
            sent.method, sent.target, sent.headers, json.dumps(json.loads(sent.body) | {}, indent=1).encode()
        )

    format.upstream = respelled


def shows_private_tags(format: Any) -> None:
    """The client gets the private id."""
    reader = format.reader
    format.reader = lambda self, request, worker, ids, head: reader(
        self, request, worker, Ids(ids.dispatch, ids.dispatch), head
    )


def chokes(format: Any) -> None:
    """Raises on a body that is no JSON."""
    parse = format.parse
    format.parse = lambda self, body, headers: json.loads(body) and parse(self, body, headers)


Test = Callable[[EndpointContract], Any]
BROKEN: tuple[tuple[Callable[[Any], None], Test], ...] = (
    (renders_pages, EndpointContract.test_fleet_without_a_worker_is_refused_in_the_dialect),
    (renders_pages, EndpointContract.test_body_over_the_limit_is_refused_in_the_dialect),
    (renders_pages, EndpointContract.test_malformed_unary_reply_is_a_failure_in_the_dialect),
    (respells, EndpointContract.test_stream_comes_back_as_the_worker_sent_it),
    (shows_private_tags, EndpointContract.test_same_id_twice_in_flight_is_isolated),
    (chokes, lambda suite: suite.test_body_that_is_no_request_is_refused_in_the_dialect(b"{")),
)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("break_it", "test"), BROKEN)
async def test_broken_format_is_found_out(
    break_it: Callable[[Any], None], test: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is imported anew for each test, so the changes do not last."""
    break_it(type(load_formats()["echo"]))
    suite = sample.TestEchoEndpoint()
    monkeypatch.setattr(sample.TestEchoEndpoint, "model", sample.EchoModel())
    with pytest.raises(AssertionError):
        await test(suite)
