"""Where a worker's record and marks lie in etcd, and how they are spelt in the JSON of its API.

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
    """Keys of the workers of one deployment, which has ``prefix`` to itself: PREFIX/workers/URL, and for each
    mark of one PREFIX/marks/MARK/URL, so that no write of a mark can undo another. PREFIX/lifted/MARK/URL is
    there for a while after a mark was taken away. The value of both is a Said's text; marks that were written
    before there was an order have none."""

    def __init__(self, prefix: str) -> None:
        root = prefix.rstrip("/")
        self._start = f"{root}/workers/".encode()
        self._marks, self._lifted = f"{root}/marks/".encode(), f"{root}/lifted/".encode()
        #: The range that holds them all, as members of a request.
        self.all = {"key": _text(self._lifted), "range_end": _text(self._start[:-1] + b"0")}

    def of(self, url: str) -> str:
        """The key of ``url``."""
        return _text(self._start + url.encode())

    def of_cordon(self, url: str, word: str, *, there: bool) -> str:
        """The key of a mark that is there, or of one that was lifted."""
        start = self._marks if there else self._lifted
        return _text(start + f"{quote(word, safe='')}/{url}".encode())

    def parse_cordon(self, key: bytes) -> tuple[str, str, bool] | None:
        """The URL and the mark in ``key``, and whether it is of one that is there; None: it is no mark's."""
        for start, there in ((self._marks, True), (self._lifted, False)):
            if key.startswith(start):
                word, _, url = key.removeprefix(start).decode(errors="replace").partition("/")
                return url, unquote(word), there
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
    def cordon_value(said: Versioned) -> str:
        """``said`` as a value. Its end makes it larger than ``cordon_bound`` of the same."""
        return _text(f"{said.text}.".encode())

    @staticmethod
    def cordon_bound(said: Versioned) -> str:
        """What values of all that was said before ``said`` are smaller than, and all others are larger."""
        return _text(said.text.encode())

    @staticmethod
    def decode(entry: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Key and value of an entry of a reply."""
        return b64decode(entry["key"]), b64decode(entry.get("value", ""))


def _text(data: bytes) -> str:
    return b64encode(data).decode()
