"""Replacing one member of a JSON object in its original bytes.

Owns: finding and replacing the value of a top-level key without touching any other byte. Must never enter:
re-serialisation, a dialect, I/O, third-party packages. The input must be a valid JSON object (the caller has
parsed it); for anything else the result is unspecified but nothing is raised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_SPACE = b" \t\n\r"
_CLOSING = re.compile(rb"[ \t\n\r]*\}")
# Entire strings (possessive, so a long one costs no backtracking), entire flat lists of numbers (they are
# most of a body, and a match for each comma in one would cost too much), other brackets, commas.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|\[[^\[\]{}"]++\]|[{}\[\],]', re.DOTALL)


def insert_member(body: bytes, key: str, value: bytes) -> bytes:
    """Return ``body`` with ``"key":value`` as its new first member. The key must not be there yet."""
    start = body.find(b"{") + 1
    comma = b"" if _CLOSING.match(body, start) else b","
    return b'%b"%b":%b%b%b' % (body[:start], key.encode(), value, comma, body[start:])


def replace_member(body: bytes, key: str, value: bytes) -> bytes:
    """Return ``body`` with ``value`` for every top-level ``key``; duplicate keys are all replaced."""
    parts: list[bytes] = []
    done = 0
    for start, end in member_spans(body, key):
        parts += (body[done:start], value)
        done = end
    parts.append(body[done:])
    return b"".join(parts)


def remove_member(body: bytes, key: str) -> bytes:
    """Return ``body`` without its top-level members called ``key`` and their commas."""
    members = list(_members(body))
    remaining = [body[first:end] for name, first, _, end in members if not _spells(name, key)]
    if len(remaining) == len(members):
        return body
    return body[: members[0][1]] + b",".join(remaining) + body[members[-1][3] :]


def member_spans(body: bytes, key: str) -> list[tuple[int, int]]:
    """Return (start, end) of the value of each top-level member called ``key``, without surrounding space."""
    return [_trim(body, start, end) for name, _, start, end in _members(body) if _spells(name, key)]


def _members(body: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield for each top-level member its name as spelled, its start, its value's start, its end."""
    depth = 0
    name = b""
    first = start = 0
    for match in _TOKEN.finditer(body):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
            first = first or match.end()
        elif depth != 1:
            depth -= token in (b"}", b"]")
        elif token in (b",", b"}"):
            if name:
                yield name, first, start, match.start()
                name = b""
                first = match.end()
            if token == b"}":
                return
        elif not name and token.startswith(b'"'):
            name = token
            start = body.find(b":", match.end()) + 1


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
