"""The resources that pause and resume calls name."""

from __future__ import annotations

import pytest

from gateway.control.pause_calls import AT_LEVEL_0, MEMORY, paused_resources, resumed_resources
from gateway.fleet.client import WorkerCall


def call(query: bytes = b"", body: bytes = b"") -> WorkerCall:
    return WorkerCall(b"POST", b"/path" + query, (), body)


@pytest.mark.parametrize(
    ("sent", "parts"),
    [
        (call(), MEMORY),
        (call(body=b'{"tags":null}'), MEMORY),
        (call(body=b'{"tags":["weights"]}'), {"weights"}),
        (call(body=b'{"tags":"weights"}'), {"weights"}),
        (call(b"?tags=weights&tags=kv_cache"), {"weights", "kv_cache"}),
        (call(b"?level=2"), MEMORY),
        (call(b"?level=0"), AT_LEVEL_0),
        (call(body=b"{"), MEMORY),
        (call(body=b"[" * 100_000), MEMORY),
        (call(body=b'{"tags":[1,{}]}'), MEMORY),
    ],
)
def test_paused_memory_is_that_of_the_tags_or_all(sent: WorkerCall, parts: set[str]) -> None:
    assert paused_resources("memory", sent) == parts


def test_paused_generation_has_no_parts() -> None:
    assert paused_resources("generation", call(body=b'{"tags":["weights"]}')) == {"generation"}


@pytest.mark.parametrize(
    ("sent", "parts", "every"),
    [
        (call(), MEMORY | AT_LEVEL_0, True),
        (call(body=b"{}"), MEMORY | AT_LEVEL_0, True),
        (call(b"?tags=weights"), {"weights"}, False),
    ],
)
def test_resumed_memory_is_that_of_the_tags_or_all(sent: WorkerCall, parts: set[str], every: bool) -> None:
    assert list(resumed_resources("memory", sent)) == [parts, every]


def test_generation_is_resumed_whatever_the_tags_are() -> None:
    assert list(resumed_resources("generation", call(b"?tags=weights"))) == [{"generation"}, True]
