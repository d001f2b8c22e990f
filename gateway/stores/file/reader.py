"""A reader of the file of workers, which finds out what has changed since it read last.

Owns: when the file is read again, what counts as a change, tolerance for files that are broken for a moment.
Must never enter: writing. All calls may block, so they run in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset
from gateway.stores.file.document import Document, InvalidDocument
from gateway.stores.file.shared_file import FileVersion, SharedFile
from gateway.stores.last_writer_wins.map import Updates, undated
from gateway.stores.record import WorkerRecord

#: Seconds after an outage of the file in which no record expires. Nobody could renew a record during the
#: outage; in this time everybody has tried again.
LENIENCE = 3.0


class FileReader:
    """The state of one watch of the file."""

    def __init__(self, file: SharedFile) -> None:
        self._file = file
        self._version: FileVersion | None = None
        self._settled = False
        self._document = Document()
        self._records: Mapping[str, WorkerRecord] | None = None
        self._cordons: Updates = {}
        self._lenient_until = 0.0
        self._written: dict[str, WorkerRecord | None] = {}
        #: Failed attempts in a row.
        self.failures = 0

    @property
    def had_workers(self) -> bool:
        """True if there were workers in the file when it was read last."""
        return bool(self._records)

    def written(self, url: str, record: WorkerRecord | None) -> None:
        """Note that this process wrote ``record``, or deleted ``url`` (None).

        If somebody undoes the write before the file is read again, the file is the same as before; the watch
        yields a change nevertheless. This may be called while ``changes`` runs in a thread.
        """
        self._written[url] = record

    def changes(self) -> list[Change]:
        """Return what has changed since the last call; the first time a Reset.

        Raises OSError and InvalidDocument.
        """
        written = {url: self._written.pop(url) for url in list(self._written)}
        try:
            self._refresh()
        except (OSError, InvalidDocument):
            self.failures += 1
            for url, record in written.items():
                self._written.setdefault(url, record)
            raise
        if self.failures:
            self._lenient_until = time.monotonic() + LENIENCE
        self.failures = 0
        before, self._records = self._records, self._unexpired()
        cordons, self._cordons = self._cordons, self._document.cordons
        if before is None:
            return [Reset(dict(self._records), self._cordons)]
        # Cordons first, so that a new worker is cordoned from its first moment.
        return [
            *_cordon_changes(cordons, self._cordons),
            *_record_changes(before, self._records),
            *_undone(written, before, self._records),
        ]

    def _refresh(self) -> None:
        version = self._file.version()
        if version == self._version and self._settled:
            return
        self._document = read_document(self._file, had_workers=self.had_workers)
        # A second change within one tick of the file system's clock is invisible, so the file is read twice.
        self._settled = version == self._version
        self._version = version

    def _unexpired(self) -> Mapping[str, WorkerRecord]:
        records = self._document.records(datetime.now(UTC))
        if self._records and time.monotonic() < self._lenient_until:
            for url in self._records:
                if entry := self._document.entry(url):
                    records[url] = entry.record
        return records


def read_document(file: SharedFile, *, had_workers: bool) -> Document:
    """Return the document in ``file``. Raises OSError and InvalidDocument.

    If it had workers before, a missing or empty file is invalid: an editor may be about to write it.
    """
    text = file.read()
    if had_workers and (text is None or not text.strip()):
        raise InvalidDocument("it is missing" if text is None else "it is empty")
    return Document(text)


def _record_changes(
    before: Mapping[str, WorkerRecord], after: Mapping[str, WorkerRecord]
) -> Iterator[Change]:
    yield from (Gone(url) for url in before if url not in after)
    yield from (Put(record) for url, record in after.items() if before.get(url) != record)


def _cordon_changes(before: Updates, after: Updates) -> Iterator[CordonsChanged]:
    changed = {key: entry for key, entry in after.items() if before.get(key) != entry}
    # A reason that is not even remembered was removed by a person, or long ago.
    gone = [key for key, entry in before.items() if entry.present and key not in after]
    if changed or gone:
        yield CordonsChanged({**changed, **dict.fromkeys(gone, undated(present=False))})


def _undone(
    written: Mapping[str, WorkerRecord | None],
    before: Mapping[str, WorkerRecord],
    after: Mapping[str, WorkerRecord],
) -> Iterator[Change]:
    for url, record in written.items():
        now = after.get(url)
        if now != record and now == before.get(url):
            yield Gone(url) if now is None else Put(now)
