"""The keys of records and cordons in etcd, and their spelling in the JSON of its API.

Owns: keys, ranges, base64. Must never enter: a call.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Versioned


class Keys:
    """The keys of one deployment, which has ``prefix`` to itself.

    A record is at PREFIX/workers/URL. Each entry of the cordons has a key of its own, so that no write of one
    can undo another: PREFIX/marks/REASON/URL if it is present, PREFIX/lifted/REASON/URL for a while after it
    was removed (a tombstone). The value of both is the text of a ``Versioned``; entries that were written
    before there were versions have an empty one.
    """

    def __init__(self, prefix: str) -> None:
        root = prefix.rstrip("/")
        self._start = f"{root}/workers/".encode()
        self._cordons, self._tombstones = f"{root}/marks/".encode(), f"{root}/lifted/".encode()
        #: The range that holds them all, as members of a request.
        self.all = {"key": _text(self._tombstones), "range_end": _text(self._start[:-1] + b"0")}

    def of(self, url: str) -> str:
        """The key of ``url``."""
        return _text(self._start + url.encode())

    def of_cordon(self, url: str, reason: str, *, present: bool) -> str:
        """Return the key of an entry that is present, or of its tombstone."""
        start = self._cordons if present else self._tombstones
        return _text(start + f"{quote(reason, safe='')}/{url}".encode())

    def parse_cordon(self, key: bytes) -> tuple[str, str, bool] | None:
        """Return the URL and the reason in ``key``, and False for a tombstone; None for any other key."""
        for start, present in ((self._cordons, True), (self._tombstones, False)):
            if key.startswith(start):
                reason, _, url = key.removeprefix(start).decode(errors="replace").partition("/")
                return url, unquote(reason), present
        return None

    def url(self, key: bytes) -> str:
        """The URL in ``key``."""
        return key.removeprefix(self._start).decode(errors="replace")

    def record(self, key: bytes, value: bytes) -> WorkerRecord:
        """The record that ``key`` holds. Raises ValueError."""
        record = WorkerRecord.from_json(value)
        if record.url != self.url(key):
            raise ValueError("it is the record of another URL")
        return record

    @staticmethod
    def value(record: WorkerRecord) -> str:
        """``record`` as a value."""
        return _text(record.to_json().encode())

    @staticmethod
    def cordon_value(entry: Versioned) -> str:
        """Return ``entry`` as a value. Its final "." makes it larger than ``cordon_bound`` of it."""
        return _text(f"{entry.text}.".encode())

    @staticmethod
    def cordon_bound(entry: Versioned) -> str:
        """Return a text between the values of all older entries and the value of ``entry``."""
        return _text(entry.text.encode())

    @staticmethod
    def decode(entry: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Key and value of an entry of a reply."""
        return b64decode(entry["key"]), b64decode(entry.get("value", ""))


def _text(data: bytes) -> str:
    return b64encode(data).decode()
