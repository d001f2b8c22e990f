"""The resources that pause and resume calls name."""

from __future__ import annotations

import pytest

from gateway.control.pause_calls import AT_LEVEL_0, MEMORY, paused_resources, resumed_resources
from gateway.fleet.client import WorkerCall


def call(query: bytes = b"", body: bytes = b"") -> WorkerCall:
    return WorkerCall(b"POST", b"/path" + query, (), body)


@pytest.mark.parametrize(
    ("kind", "sent", "parts"),
    [
        ("memory", call(), MEMORY),
        ("memory", call(body=b'{"tags":null}'), MEMORY),
        ("memory", call(body=b'{"tags":["weights"]}'), {"weights"}),
        ("memory", call(body=b'{"tags":"weights"}'), {"weights"}),
        ("memory", call(b"?tags=weights&tags=kv_cache"), {"weights", "kv_cache"}),
        ("memory", call(b"?level=2"), MEMORY),
        ("memory", call(b"?level=0"), AT_LEVEL_0),
        ("memory", call(body=b"{"), MEMORY),
        ("memory", call(body=b"[" * 100_000), MEMORY),
        ("memory", call(body=b'{"tags":[1,{}]}'), MEMORY),
        ("generation", call(body=b'{"tags":["weights"]}'), {"generation"}),
    ],
)
def test_paused_memory_is_that_of_the_tags_or_all(kind: str, sent: WorkerCall, parts: set[str]) -> None:
    assert paused_resources(kind, sent) == parts


@pytest.mark.parametrize(
    ("kind", "sent", "parts", "every"),
    [
        ("memory", call(), MEMORY | AT_LEVEL_0, True),
        ("memory", call(body=b"{}"), MEMORY | AT_LEVEL_0, True),
        ("memory", call(b"?tags=weights"), {"weights"}, False),
        ("generation", call(b"?tags=weights"), {"generation"}, True),
    ],
)
def test_resumed_memory_is_that_of_the_tags_or_all(
    kind: str, sent: WorkerCall, parts: set[str], every: bool
) -> None:
    assert list(resumed_resources(kind, sent)) == [parts, every]
