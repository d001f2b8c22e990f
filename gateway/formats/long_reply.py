"""Finish reasons and usage of a unary reply that is relayed before it is complete.

Owns: finding these members in a reply that comes in pieces. Must never enter: a dialect, what they mean,
third-party packages.
"""

from __future__ import annotations

import re
from collections.abc import Callable

SPACE = b" \t\r\n"
_MEMBER = re.compile(rb'"finish_reason":"(\w+)"|"usage":(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_OVERLAP = 512  # longest member looked for, in bytes


class MemberScanner:
    """Calls ``on_reason`` with each finish reason, and ``on_usage`` with the JSON object of each usage.

    ``closed`` is true if the pieces so far end like an object. A quote inside a JSON string has a backslash
    before it, so no generated text looks like one of the members searched for.
    """

    __slots__ = ("_on_reason", "_on_usage", "_tail", "closed")

    def __init__(self, on_reason: Callable[[str], None], on_usage: Callable[[bytes], None]) -> None:
        self._on_reason = on_reason
        self._on_usage = on_usage
        self._tail = b""
        self.closed = False

    def feed(self, data: bytes) -> None:
        """Scan the next piece of the reply."""
        window = self._tail + data
        done = 0
        for match in _MEMBER.finditer(window):
            done = match.end()
            if match[1] is not None:
                self._on_reason(match[1].decode())
            else:
                self._on_usage(match[2])
        self._tail = window[max(done, len(window) - _OVERLAP) :]
        if text := data.rstrip(SPACE):
            self.closed = text.endswith(b"}")
