"""What a reader of a file of workers has seen, and what is new since.

Owns: when the file is read again, what counts as a change, patience with what is broken. Must never enter:
writing. Its calls may block: they run in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset
from gateway.stores.file.document import Document, Unreadable
from gateway.stores.file.shared_file import FileVersion, SharedFile
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Updates, undated

#: While a file cannot be read, nobody can renew a lease in it. Once it can again, none counts as run out for
#: so many seconds, in which each keeper has tried again.
LENIENCE = 3.0


class FileReader:
    """One reader's."""

    def __init__(self, disk: SharedFile) -> None:
        self._disk = disk
        self._stamp: FileVersion | None = None
        self._settled = False
        self._document = Document()
        self._told: Mapping[str, WorkerRecord] | None = None
        self._cordons: Updates = {}
        self._lenient_until = 0.0
        self._written: dict[str, WorkerRecord | None] = {}
        #: Looks in a row that failed.
        self.failures = 0

    @property
    def known(self) -> bool:
        """Whether there were workers in the file when it was read last."""
        return bool(self._told)

    def written(self, url: str, record: WorkerRecord | None) -> None:
        """The reader knows by itself that ``record`` was written, or that ``url`` was deleted (None).

        Should somebody undo that before the next look, the file is as it was told last, and the reader is
        told all the same. May be called while a look goes on.
        """
        self._written[url] = record

    def changes(self) -> list[Change]:
        """What is new since the last time; a Reset the first time. Raises OSError and Unreadable."""
        written = {url: self._written.pop(url) for url in list(self._written)}
        try:
            self._refresh()
        except (OSError, Unreadable):
            self.failures += 1
            for url, record in written.items():
                self._written.setdefault(url, record)
            raise
        if self.failures:
            self._lenient_until = time.monotonic() + LENIENCE
        self.failures = 0
        before, self._told = self._told, self._records()
        known, self._cordons = self._cordons, self._document.cordons
        if before is None:
            return [Reset(dict(self._told), self._cordons)]
        # Cordons first: a worker that joins is cordoned from the start.
        return [
            *_changed_cordons(known, self._cordons),
            *_between(before, self._told),
            *_undone(written, before, self._told),
        ]

    def _refresh(self) -> None:
        stamp = self._disk.stamp()
        if stamp == self._stamp and self._settled:
            return
        self._document = read(self._disk, known=self.known)
        # Two changes within one tick of the file system's clock look like one: so it is read once more.
        self._settled = stamp == self._stamp
        self._stamp = stamp

    def _records(self) -> Mapping[str, WorkerRecord]:
        records = self._document.records(datetime.now(UTC))
        if self._told and time.monotonic() < self._lenient_until:
            for url in self._told:
                if entry := self._document.entry(url):
                    records[url] = entry.record
        return records


def read(disk: SharedFile, *, known: bool) -> Document:
    """What the file says. With ``known`` workers in it before, one that is missing or empty says nothing: an
    editor may have emptied it to write it anew. Raises OSError and Unreadable."""
    text = disk.read()
    if known and (text is None or not text.strip()):
        raise Unreadable("it is missing" if text is None else "it is empty")
    return Document(text)


def _between(before: Mapping[str, WorkerRecord], after: Mapping[str, WorkerRecord]) -> Iterator[Change]:
    yield from (Gone(url) for url in before if url not in after)
    yield from (Put(record) for url, record in after.items() if before.get(url) != record)


def _changed_cordons(before: Updates, after: Updates) -> Iterator[CordonsChanged]:
    for url in {**before, **after}:
        old, new = before.get(url, {}), after.get(url, {})
        changed = {reason: entry for reason, entry in new.items() if old.get(reason) != entry}
        # A reason without even a tombstone was removed by a person, or its tombstone was dropped.
        removed = (reason for reason, entry in old.items() if entry.present and reason not in new)
        changed |= dict.fromkeys(removed, undated(present=False))
        if changed:
            yield CordonsChanged(url, changed)


def _undone(
    written: Mapping[str, WorkerRecord | None],
    before: Mapping[str, WorkerRecord],
    after: Mapping[str, WorkerRecord],
) -> Iterator[Change]:
    for url, record in written.items():
        there = after.get(url)
        if there != record and there == before.get(url):
            yield Gone(url) if there is None else Put(there)
