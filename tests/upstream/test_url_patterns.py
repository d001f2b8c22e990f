"""Which URLs may be registered."""

from __future__ import annotations

import pytest

from gateway.upstream.url_patterns import UrlPattern


@pytest.mark.parametrize(
    ("pattern", "url", "allowed"),
    [
        ("*", "https://anything:1/at/all", True),
        ("worker", "http://worker", True),
        ("worker", "http://WORKER:30000/p", True),
        ("worker", "http://worker.evil", False),
        ("http://worker", "https://worker", False),
        ("worker:80", "http://worker", True),
        ("worker:*", "http://worker:1", True),
        ("worker:8000", "http://worker:8001", False),
        ("*.pool", "http://a.pool", True),
        ("*.pool", "http://a.b.pool", False),
        ("gpu-*", "http://gpu-7", True),
        ("gpu-*", "http://gpu-7.evil", False),
        ("10.0.0.0/8", "http://10.1.2.3:1", True),
        ("10.0.0.0/8", "http://11.1.2.3:1", False),
        ("10.0.0.0/8", "http://167772161:1", False),
        ("10.0.0.0/8:30000", "http://10.1.2.3:30000@5", True),
        ("[fd00::/8]", "http://[fd00::1]:1", True),
        ("[fd00::/8]:1", "http://[fe00::1]:1", False),
        ("[::1]", "http://[0:0::1]:1", True),
    ],
)
def test_pattern_is_held_against_the_parts_of_a_url(pattern: str, url: str, allowed: bool) -> None:
    """Nothing in a path or a longer name looks like another host."""
    assert UrlPattern.parse(pattern).matches(url) is allowed


@pytest.mark.parametrize(
    "text",
    ["", "ftp://a", "http://a/path", "a b", "10.0.0.0/99", "[10.0.0.0/8", "a:0", "a:70000", "me@a", "[::1"],
)
def test_pattern_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|network|port"):
        UrlPattern.parse(text)
