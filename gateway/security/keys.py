"""A set of keys, and the bearer token of a request.

Owns: comparing keys in constant time, and reading the bearer token of a request. Must never enter: files,
which route requires which key. No text that leaves this module contains a key.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from hashlib import blake2b

from gateway.formats.contract import Headers, header

#: The characters of a key: those that a header field carries unchanged.
PLAUSIBLE = re.compile(rb"[!-~]+")

_SCHEME = b"bearer "


class Keys:
    """A set of keys. Only their digests are kept, keyed with a secret of this process."""

    __slots__ = ("_digests", "_secret")

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = tuple(self._digest(key) for key in dict.fromkeys(keys))

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
