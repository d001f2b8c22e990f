"""The keys and values of records and cordons in etcd, as its JSON API encodes them.

Owns: keys, ranges, base64. Must never enter: a call.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from gateway.stores.last_writer_wins.map import Key, Versioned
from gateway.stores.record import WorkerRecord


class Keys:
    """The keys of one deployment, all below ``prefix``.

    A record is at PREFIX/workers/URL. Each reason for a cordon has a key of its own, so that no write can
    undo another: PREFIX/marks/REASON/URL while it is present, and PREFIX/lifted/REASON/URL for a while after
    it was removed (a tombstone). The value of both is the text of a Versioned; gateways older than versioned
    entries wrote an empty value.
    """

    def __init__(self, prefix: str) -> None:
        root = prefix.rstrip("/")
        self._records = f"{root}/workers/".encode()
        self._cordons, self._tombstones = f"{root}/marks/".encode(), f"{root}/lifted/".encode()
        #: The range of the records' keys, and that of all keys, as fields of a request.
        self.records = {"key": _text(self._records), "range_end": _text(self._records[:-1] + b"0")}
        self.all = {"key": _text(self._tombstones), "range_end": _text(self._records[:-1] + b"0")}

    def of(self, url: str) -> str:
        """Return the key of the record of ``url``."""
        return _text(self._records + url.encode())

    def of_cordon(self, cordon: Key, *, present: bool) -> str:
        """Return the key of an entry that is present, or of its tombstone."""
        url, reason = cordon
        start = self._cordons if present else self._tombstones
        return _text(start + f"{quote(reason, safe='')}/{url}".encode())

    def parse_cordon(self, key: bytes) -> tuple[Key, bool] | None:
        """Return the URL and the reason in ``key``, and False for a tombstone; None for any other key."""
        for start, present in ((self._cordons, True), (self._tombstones, False)):
            if key.startswith(start):
                reason, _, url = key.removeprefix(start).decode(errors="replace").partition("/")
                return (url, unquote(reason)), present
        return None

    def url(self, key: bytes) -> str:
        """Return the URL of a record's key."""
        return key.removeprefix(self._records).decode(errors="replace")

    def record(self, key: bytes, value: bytes) -> WorkerRecord:
        """Return the record at ``key``. Raises ValueError."""
        record = WorkerRecord.from_json(value)
        if record.url != self.url(key):
            raise ValueError("it is the record of another URL")
        return record

    @staticmethod
    def value(record: WorkerRecord) -> str:
        """Return ``record`` as a value."""
        return _text(record.to_json().encode())

    @staticmethod
    def cordon_value(entry: Versioned) -> str:
        """Return ``entry`` as a value. Its last byte makes it larger than its own ``cordon_bound``."""
        return _text(f"{entry.text}.".encode())

    @staticmethod
    def cordon_bound(entry: Versioned) -> str:
        """Return a bound: earlier entries sort below it, ``entry`` and later ones above."""
        return _text(entry.text.encode())

    @staticmethod
    def decode(pair: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return key and value of a key-value pair of a reply."""
        return b64decode(pair["key"]), b64decode(pair.get("value", ""))


def _text(data: bytes) -> str:
    return b64encode(data).decode()
