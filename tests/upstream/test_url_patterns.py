"""Which URLs may be registered."""

from __future__ import annotations

import pytest

from gateway.upstream.url_patterns import UrlPattern


@pytest.mark.parametrize(
    ("pattern", "allowed", "others"),
    [
        ("*", ["https://anything:1/at/all"], []),
        ("worker", ["http://worker", "http://WORKER:30000/p"], ["http://worker.evil"]),
        ("http://worker", [], ["https://worker"]),
        ("worker:80", ["http://worker"], []),
        ("worker:*", ["http://worker:1"], []),
        ("worker:8000", [], ["http://worker:8001"]),
        ("*.pool", ["http://a.pool"], ["http://a.b.pool"]),
        ("gpu-*", ["http://gpu-7"], ["http://gpu-7.evil"]),
        ("10.0.0.0/8", ["http://10.1.2.3:1"], ["http://11.1.2.3:1", "http://167772161:1"]),
        ("10.0.0.0/8:30000", ["http://10.1.2.3:30000@5"], []),
        ("[fd00::/8]", ["http://[fd00::1]:1"], []),
        ("[fd00::/8]:1", [], ["http://[fe00::1]:1"]),
        ("[::1]", ["http://[0:0::1]:1"], []),
    ],
)
def test_pattern_is_held_against_the_parts_of_a_url(
    pattern: str, allowed: list[str], others: list[str]
) -> None:
    """Nothing in a path or a longer name looks like another host."""
    assert [url for url in allowed + others if UrlPattern.parse(pattern).matches(url)] == allowed


@pytest.mark.parametrize(
    "text",
    ["", "ftp://a", "http://a/path", "a b", "10.0.0.0/99", "[10.0.0.0/8", "a:0", "a:70000", "me@a", "[::1"],
)
def test_pattern_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|network|port"):
        UrlPattern.parse(text)
