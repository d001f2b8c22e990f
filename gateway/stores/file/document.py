"""The document in a file of workers, and changes to it.

Owns: its JSON, what makes it invalid, the expiry times of records. Must never enter: I/O, a clock.

A document is ``{"workers": [...]}``; each entry is a worker's record, or its URL alone. A record with a TTL
has a member ``expires_at`` as well. Cordons are beside the workers (``read_cordons``). Unknown members are
kept, so that different versions of the gateway can share a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.stores.file.cordons import MEMBERS, members_of, read_cordons
from gateway.stores.last_writer_wins.map import Updates
from gateway.stores.record import WorkerRecord
from gateway.stores.spellings import under_all_spellings
from gateway.upstream.address import spellings_of

_EXPIRES = "expires_at"


class InvalidDocument(ValueError):
    """The text is not a valid document; the message says where."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A worker in the document.

    ``members`` is the JSON object in the file; ``expires`` None: it does not expire.
    """

    record: WorkerRecord
    members: Mapping[str, Any]
    expires: datetime | None = None


class Document:
    """The workers and cordons in a file. All times have a time zone."""

    def __init__(self, text: bytes | None = None) -> None:
        """Parse ``text``; without any text the document has no workers. Raises InvalidDocument."""
        self._members: dict[str, Any] = {}
        self._entries: dict[str, Entry] = {}
        self._cordons = read_cordons({})
        if text is None or not text.strip():
            return
        try:
            members = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidDocument(f"it is not JSON: {error}") from error
        if not isinstance(members, dict) or not isinstance(members.get("workers"), list):
            raise InvalidDocument('it must be a JSON object with a list of "workers"')
        self._members = members
        try:
            self._cordons = read_cordons(members)
        except ValueError as error:
            raise InvalidDocument(str(error)) from error
        for entry in _entries(members["workers"]):
            if self._entries.setdefault(entry.record.url, entry) is not entry:
                raise InvalidDocument(f"{entry.record.url} is listed twice")

    @property
    def text(self) -> bytes:
        """The document as the text of a file."""
        workers = [dict(entry.members) for entry in self._entries.values()]
        others = {name: each for name, each in self._members.items() if name not in MEMBERS}
        members = {**others, "workers": workers, **members_of(self.cordons)}
        return json.dumps(members, indent=2).encode() + b"\n"

    @property
    def cordons(self) -> Updates:
        """All entries of the cordons, tombstones included."""
        return self._cordons.snapshot()

    def write_cordons(self, updates: Updates) -> None:
        """Apply ``updates``; an entry counts if it is later than the one in the document."""
        self._cordons.merge(under_all_spellings(updates, self._cordons.snapshot()))

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, url: str) -> Entry | None:
        """Return the entry of ``url``, if there is one."""
        return self._entries.get(url)

    def records(self, now: datetime) -> dict[str, WorkerRecord]:
        """Return all records that have not expired, by URL."""
        return {url: entry.record for url, entry in self._entries.items() if not _expired(entry, now)}

    def put(self, record: WorkerRecord, expires: datetime | None, now: datetime) -> None:
        """Set ``record``.

        With ``expires`` None it keeps the expiry of the previous record, unless that has passed.
        """
        before = self._entries.get(record.url)
        if expires is None and before is not None and not _expired(before, now):
            expires = before.expires
        members = json.loads(record.to_json())
        if expires is not None:
            members[_EXPIRES] = expires.isoformat()
        self._entries[record.url] = Entry(record, members, expires)

    def extend(self, url: str, expires: datetime) -> None:
        """Set a later expiry for ``url``; a record that does not expire stays so."""
        entry = self._entries[url]
        if entry.expires is not None:
            members = {**entry.members, _EXPIRES: expires.isoformat()}
            self._entries[url] = Entry(entry.record, members, expires)

    def delete(self, url: str) -> list[str]:
        """Remove all spellings of ``url``; return those that were in the document."""
        found = spellings_of(url, self._entries)
        for each in found:
            del self._entries[each]
        return found

    def prune(self, now: datetime) -> None:
        """Remove the records that have expired."""
        self._entries = {url: entry for url, entry in self._entries.items() if not _expired(entry, now)}


def _entries(workers: list[Any]) -> Iterator[Entry]:
    for number, members in enumerate(workers, 1):
        if isinstance(members, str):
            members = {"url": members}
        if not isinstance(members, dict):
            raise InvalidDocument(f"worker {number} must be a JSON object or a URL")
        try:
            yield Entry(WorkerRecord.of(members), members, _expiry(members.get(_EXPIRES)))
        except ValueError as error:
            raise InvalidDocument(f"worker {number}: {error}") from error


def _expiry(value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{_EXPIRES} must be a time such as 2030-01-31T12:00:00+00:00")
    expires = datetime.fromisoformat(value)
    if expires.tzinfo is None:
        raise ValueError(f"{_EXPIRES} must have a zone")
    return expires


def _expired(entry: Entry, now: datetime) -> bool:
    return entry.expires is not None and entry.expires <= now
