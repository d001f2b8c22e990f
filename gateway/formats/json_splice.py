"""Changing one member of a JSON object in its original bytes.

Owns: finding and replacing the value of a top-level key without touching any other byte. Must never enter:
re-serialisation, a dialect, I/O, third-party packages. The input must be a valid JSON object (the caller
has parsed it); on anything else the result is unspecified but nothing is raised.
"""

from __future__ import annotations

import json
import re

_SPACE = b" \t\n\r"
# Strings whole (possessive, so a long one costs no backtracking), flat lists of numbers whole (they are most of
# a body, and a match for each comma in one would cost too much), other brackets, commas.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|\[[^\[\]{}"]++\]|[{}\[\],]', re.DOTALL)


def insert_member(body: bytes, key: str, value: bytes) -> bytes:
    """``body`` with ``"key":value`` as its new first member. The key must not be there yet."""
    start = body.index(b"{") + 1
    rest = body[start:]
    comma = b"" if rest.lstrip(_SPACE).startswith(b"}") else b","
    return b'%b"%b":%b%b%b' % (body[:start], key.encode(), value, comma, rest)


def replace_member(body: bytes, key: str, value: bytes) -> bytes:
    """``body`` with every top-level ``key`` given ``value``; duplicate keys are all replaced."""
    parts: list[bytes] = []
    done = 0
    for start, end in member_spans(body, key):
        parts += (body[done:start], value)
        done = end
    parts.append(body[done:])
    return b"".join(parts)


def member_spans(body: bytes, key: str) -> list[tuple[int, int]]:
    """(start, end) of the value of each top-level member called ``key``, surrounding space left out."""
    spans: list[tuple[int, int]] = []
    depth = 0
    at_key = False
    value_start = -1
    for match in _TOKEN.finditer(body):
        token = match.group()
        first = token[:1]
        if first == b'"':
            if depth == 1 and at_key:
                at_key = False
                if _spells(token, key):
                    value_start = body.index(b":", match.end()) + 1
        elif first in (b"{", b"["):
            if len(token) > 1:
                continue
            depth += 1
            at_key = depth == 1
        elif depth == 1:
            # A comma or the closing brace of the object itself: a top-level value ends here.
            if value_start >= 0:
                spans.append(_trim(body, value_start, match.start()))
                value_start = -1
            at_key = True
            if first == b"}":
                break
        elif first != b",":
            depth -= 1
    return spans


def _spells(token: bytes, key: str) -> bool:
    if b"\\" not in token:
        return token[1:-1] == key.encode()
    try:
        return bool(json.loads(token) == key)
    except ValueError:
        return False


def _trim(body: bytes, start: int, end: int) -> tuple[int, int]:
    while start < end and body[start] in _SPACE:
        start += 1
    while end > start and body[end - 1] in _SPACE:
        end -= 1
    return start, end
