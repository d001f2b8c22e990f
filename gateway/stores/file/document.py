"""The text of a file of workers, and how it changes.

Owns: its JSON, what makes it unreadable, leases as stamps of time. Must never enter: I/O, a clock.

A document is ``{"workers": [...]}`` with a worker's record in each entry, or its URL alone. An entry under a
lease has ``expires_at`` as well. Cordons are beside them (``StoredCordons``). Members that are not known here
stay where they are, so that versions of the gateway can share a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.stores.file.cordons import MEMBERS, StoredCordons
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Updates

_EXPIRES = "expires_at"


class Unreadable(ValueError):
    """The text is no document; the message says where."""


@dataclass(frozen=True, slots=True)
class Entry:
    """``members`` is the entry as it stands in the file; ``expires`` None: it stays."""

    record: WorkerRecord
    members: Mapping[str, Any]
    expires: datetime | None = None


class Document:
    """What a file says. Times have a zone."""

    def __init__(self, text: bytes | None = None) -> None:
        """Read ``text``; none, or only blanks, is a document without workers. Raises Unreadable."""
        self._members: dict[str, Any] = {}
        self._entries: dict[str, Entry] = {}
        self._cordons = StoredCordons({})
        if text is None or not text.strip():
            return
        try:
            members = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"it is not JSON: {error}") from error
        if not isinstance(members, dict) or not isinstance(members.get("workers"), list):
            raise Unreadable('it must be a JSON object with a list of "workers"')
        self._members = members
        try:
            self._cordons = StoredCordons(members)
        except ValueError as error:
            raise Unreadable(str(error)) from error
        for entry in _entries(members["workers"]):
            if self._entries.setdefault(entry.record.url, entry) is not entry:
                raise Unreadable(f"{entry.record.url} is there twice")

    @property
    def text(self) -> bytes:
        """The file's new text."""
        workers = [dict(entry.members) for entry in self._entries.values()]
        others = {name: each for name, each in self._members.items() if name not in MEMBERS}
        members = {**others, "workers": workers, **self._cordons.members}
        return json.dumps(members, indent=2).encode() + b"\n"

    @property
    def cordons(self) -> Updates:
        """All entries of the cordons."""
        return self._cordons.known

    def write_cordons(self, updates: Updates) -> None:
        """Merge ``updates`` into the cordons."""
        self._cordons.update(updates)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, url: str) -> Entry | None:
        """What it says of ``url``."""
        return self._entries.get(url)

    def records(self, now: datetime) -> dict[str, WorkerRecord]:
        """All records but those whose lease has run out, by URL."""
        return {url: entry.record for url, entry in self._entries.items() if not _over(entry, now)}

    def put(self, record: WorkerRecord, expires: datetime | None, now: datetime) -> None:
        """Set ``record``; None keeps the lease that the one before has, if any and if it has not run out."""
        before = self._entries.get(record.url)
        if expires is None and before is not None and not _over(before, now):
            expires = before.expires
        members = json.loads(record.to_json())
        if expires is not None:
            members[_EXPIRES] = expires.isoformat()
        self._entries[record.url] = Entry(record, members, expires)

    def extend(self, url: str, expires: datetime) -> None:
        """Let the lease of ``url`` last until then; one that stays without a lease keeps doing so."""
        entry = self._entries[url]
        if entry.expires is not None:
            members = {**entry.members, _EXPIRES: expires.isoformat()}
            self._entries[url] = Entry(entry.record, members, expires)

    def delete(self, url: str) -> bool:
        """Take ``url`` out; False if it was not in."""
        return self._entries.pop(url, None) is not None

    def prune(self, now: datetime) -> None:
        """Take out what has run out."""
        self._entries = {url: entry for url, entry in self._entries.items() if not _over(entry, now)}


def _entries(workers: list[Any]) -> Iterator[Entry]:
    for number, members in enumerate(workers, 1):
        if isinstance(members, str):
            members = {"url": members}
        if not isinstance(members, dict):
            raise Unreadable(f"worker {number} must be a JSON object or a URL")
        try:
            yield Entry(WorkerRecord.of(members), members, _expiry(members.get(_EXPIRES)))
        except ValueError as error:
            raise Unreadable(f"worker {number}: {error}") from error


def _expiry(value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{_EXPIRES} must be a time such as 2030-01-31T12:00:00+00:00")
    expires = datetime.fromisoformat(value)
    if expires.tzinfo is None:
        raise ValueError(f"{_EXPIRES} must have a zone")
    return expires


def _over(entry: Entry, now: datetime) -> bool:
    return entry.expires is not None and entry.expires <= now
