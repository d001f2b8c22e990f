"""Hypothesis strategies for split, truncated and damaged bytes.

Owns: these strategies. Must never enter: a law, a dialect.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.formats.contract import Headers

_JUNK = st.sampled_from(
    (
        b"",
        b"\n",
        b"\r\n\r\n",
        b"data: ",
        b"[DONE]",
        b"{",
        b"}",
        b"]",
        b'"',
        b",",
        b"\\",
        b"\xff",
        b"null",
        b"0",
    )
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from((2**63, 2**64, -(2**63) - 1, 10**400, 0, -1, 1))
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
ANY_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_HEADER_NAMES = st.sampled_from(
    (b"authorization", b"connection", b"content-type", b"x-data-parallel-rank", b"x-request-id", b"x-tag")
)
_HEADER_VALUES = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=12
).map(lambda value: value.strip().encode("latin-1"))


def splits(data: bytes) -> SearchStrategy[tuple[bytes, ...]]:
    """Return a strategy for ``data`` in non-empty pieces, as a socket may deliver it."""
    if len(data) < 2:
        return st.just((data,))
    places = st.lists(st.integers(1, len(data) - 1), max_size=8).map(lambda at: _cut(data, at))
    return places | st.integers(1, 9).map(lambda step: _cut(data, range(step, len(data), step)))


def damaged(data: bytes) -> SearchStrategy[bytes]:
    """Return a strategy for ``data`` unchanged, truncated, or with a few bytes replaced."""
    place = st.integers(0, len(data))
    truncated = place.map(lambda end: data[:end])
    return st.just(data) | truncated | st.builds(_replaced, st.just(data), place, st.integers(0, 3), _JUNK)


def bodies(body: bytes) -> SearchStrategy[bytes]:
    """Return a strategy for request bodies: any bytes, any JSON, and ``body`` with a value replaced."""
    changed = ANY_JSON.flatmap(lambda value: _places(body).map(lambda path: _planted(body, path, value)))
    return st.binary(max_size=64) | ANY_JSON.map(_encoded) | damaged(body) | changed


def header_lines(headers: Headers) -> SearchStrategy[Headers]:
    """Return a strategy for ``headers`` with up to two lines of any value in front."""
    lines = st.lists(st.tuples(_HEADER_NAMES, _HEADER_VALUES), max_size=2)
    return lines.map(lambda extra: [*extra, *headers])


def _cut(data: bytes, places: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(data[start:end] for start, end in pairwise((0, *sorted(set(places)), len(data))))


def _replaced(data: bytes, start: int, length: int, junk: bytes) -> bytes:
    return data[:start] + junk + data[start + length :]


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def _places(body: bytes) -> SearchStrategy[tuple[Any, ...]]:
    return st.sampled_from([path for path in _paths(json.loads(body)) if path] or [()])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in _paths(item, (*path, key)))]


def _planted(body: bytes, path: tuple[Any, ...], value: Any) -> bytes:
    """Return ``body`` with ``value`` at ``path``."""
    document = json.loads(body)
    if not path:
        return _encoded(value)
    target = document
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return _encoded(document)
