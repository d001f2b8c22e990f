"""A set of keys, and the keys that a request has.

Owns: comparing keys in constant time, and the headers that contain a request's keys. Must never enter: files,
which route requires which key. No text that leaves this module contains a key.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b

from gateway.formats.contract import Headers, header

#: The characters of a key: those that a header field carries unchanged.
PLAUSIBLE = re.compile(rb"[!-~]+")

_SCHEME = b"bearer "
#: Headers whose value is a key, without a scheme: of Anthropic's API, of Azure's.
_BARE = (b"x-api-key", b"api-key")


class Keys:
    """A set of keys. Only their digests, keyed with a secret of this process, and ``lengths`` are kept."""

    __slots__ = ("_digests", "_secret", "lengths")

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._secret = secrets.token_bytes(32)
        distinct = dict.fromkeys(keys)
        self._digests = tuple(self._digest(key) for key in distinct)
        self.lengths = frozenset(map(len, distinct))

    def __repr__(self) -> str:
        return f"<Keys {len(self)}>"

    def __len__(self) -> int:
        return len(self._digests)

    def has(self, key: bytes) -> bool:
        """Return True if ``key`` is in the set. The time depends on the length of ``key`` only."""
        digest, found = self._digest(key), False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, key=self._secret, digest_size=32).digest()


def bearer(headers: Headers) -> bytes | None:
    """Return the token of the first ``Authorization`` line if that is ``Bearer`` (RFC 6750), else None."""
    value = header(headers, b"authorization")
    if value is None or value[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return value[len(_SCHEME) :].strip() or None


def tokens_of(headers: Headers) -> Sequence[bytes]:
    """Return the keys that a request presents: bearer token, X-API-Key, Api-Key; of each the first line."""
    found = (bearer(headers), *(header(headers, name) for name in _BARE))
    return [token for token in found if token]


def names_with_keys(headers: Headers, sets: Sequence[Keys]) -> Collection[bytes]:
    """Return the names of the headers with a line that is a key of one of ``sets``, bare or as ``Bearer``.

    A value that has the length of no key takes less time than others.
    """
    lengths = frozenset[int]().union(*(keys.lengths for keys in sets))
    found = set()
    for name, value in headers:
        with_scheme = value[: len(_SCHEME)].lower() == _SCHEME
        if with_scheme or len(value) in lengths:
            tokens = (value, value[len(_SCHEME) :].strip()) if with_scheme else (value,)
            if any(keys.has(token) for keys in sets for token in tokens):
                found.add(name)
    return found
