"""Keys from a file that can change while the gateway runs.

Owns: the format of the file, reading it again when it has changed, and keeping the last valid keys while it
cannot be used. Must never enter: which routes require a key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from gateway.loop.files import open_regular
from gateway.security.file_changes import FileChanges
from gateway.security.keys import PLAUSIBLE, Keys

log = logging.getLogger(__name__)

#: Keys in one file. Each request is compared with each key.
MAX_KEYS = 1000
#: Bytes of the file.
MAX_BYTES = 1024 * 1024


class UnusableKeys(ValueError):
    """The file contains no usable keys. The message says why, and contains no part of the file."""


class KeySource:
    """The keys of one kind: ``key``, those of the file at ``path``, or both together.

    Raises OSError and UnusableKeys.
    """

    def __init__(self, key: bytes | None, path: str | None) -> None:
        self._given = [] if key is None else [key]
        self._path = None if path is None else Path(path)
        self.file_changes = FileChanges([] if self._path is None else [self._path])
        self._problem = ""
        self.keys = self._read()

    def __repr__(self) -> str:
        return f"<KeySource {self.keys}>"

    def refresh(self) -> None:
        """Read the file again; keep the last valid keys while it cannot be used."""
        try:
            keys = self._read()
        except (OSError, UnusableKeys) as error:
            problem = getattr(error, "strerror", None) or str(error)
            if problem != self._problem:  # logged once, not at each poll
                log.warning("%s cannot be used, its previous keys stay valid: %s", self._path, problem)
            self._problem = problem
            return
        if self._problem or len(keys) != len(self.keys):
            log.info("%s: now %d keys", self._path, len(keys))
        self.keys, self._problem = keys, ""

    def _read(self) -> Keys:
        found = list(self._given)
        if self._path is not None:
            with open_regular(self._path) as file:
                found += _keys_in(file.read(MAX_BYTES + 1))
        return Keys(found)


def _keys_in(content: bytes) -> list[bytes]:
    if len(content) > MAX_BYTES:
        raise UnusableKeys(f"the file is over the limit of {MAX_BYTES} bytes")
    keys = list(_lines_of(content))
    if not keys:
        raise UnusableKeys("the file contains no key")
    if len(keys) > MAX_KEYS:
        raise UnusableKeys(f"the file contains {len(keys)} keys, over the limit of {MAX_KEYS}")
    return keys


def _lines_of(content: bytes) -> Iterator[bytes]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if PLAUSIBLE.fullmatch(key) is None:
            raise UnusableKeys(f"line {number} is not a key: a key is printable ASCII without spaces")
        yield key
