"""Keys from a file that may change while the gateway runs.

Owns: the file's form, reading it again when it changed, and keeping to the last good keys while it cannot be
used. Must never enter: who asks for a key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from gateway.loop.files import open_regular
from gateway.security.file_changes import FileChanges
from gateway.security.keys import PLAUSIBLE, Keys

log = logging.getLogger(__name__)

#: Keys in one file. Each costs every request a comparison.
MOST_KEYS = 1000
#: Bytes of the file.
LARGEST = 1024 * 1024


class UnusableKeys(ValueError):
    """The file holds no usable keys. The message says why, and holds no part of the file."""


class KeySource:
    """The keys of one kind: one that is ``given``, those of the file at ``path``, or both together.

    Raises OSError and UnusableKeys.
    """

    def __init__(self, given: bytes | None, path: str | None) -> None:
        self._given = [] if given is None else [given]
        self._path = None if path is None else Path(path)
        self.file_changes = FileChanges([] if self._path is None else [self._path])
        self._complaint = ""
        self.keys = self._read()

    def __repr__(self) -> str:
        return f"<KeySource {self.keys}>"

    def refresh(self) -> None:
        """Take what the file holds now; the last good keys stay while it cannot be used."""
        try:
            keys = self._read()
        except (OSError, UnusableKeys) as error:
            return self._complain(getattr(error, "strerror", None) or str(error))
        if self._complaint or len(keys) != len(self.keys):
            log.info("%s: now %d keys", self._path, len(keys))
        self.keys, self._complaint = keys, ""

    def _read(self) -> Keys:
        found = list(self._given)
        if self._path is not None:
            with open_regular(self._path) as file:
                found += _keys_in(file.read(LARGEST + 1))
        return Keys(found)

    def _complain(self, why: str) -> None:
        if why != self._complaint:  # once, not at each look
            log.warning("%s cannot be used, the keys it had stay valid: %s", self._path, why)
        self._complaint = why


def _keys_in(content: bytes) -> list[bytes]:
    if len(content) > LARGEST:
        raise UnusableKeys(f"it is over the limit of {LARGEST} bytes")
    keys = list(_lines_of(content))
    if not keys:
        raise UnusableKeys("it holds no key")
    if len(keys) > MOST_KEYS:
        raise UnusableKeys(f"it holds {len(keys)} keys, over the limit of {MOST_KEYS}")
    return keys


def _lines_of(content: bytes) -> Iterator[bytes]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if PLAUSIBLE.fullmatch(key) is None:
            raise UnusableKeys(f"line {number} is no key: it must be printable ASCII without spaces")
        yield key
