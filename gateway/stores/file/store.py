"""The store in a file: the processes of one host share a fleet, and a person can edit the file.

Owns: polling the file, writes within their time limit, TTLs. Must never enter: JSON, locks, how a file is
written.

The file is polled five times a second, as notifications of changes do not work on every file system. While
the file is invalid, or missing after it had workers, the fleet stays as it is known; the file is not written
to either, as that could destroy somebody's edit. Expiry times are times of the host's clock: setting the
clock forward ends TTLs early, setting it back ends them late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from gateway.loop.daemon_thread import DaemonThread
from gateway.stores.base import StoreUnavailable
from gateway.stores.feeds import Emit
from gateway.stores.file.document import Document, InvalidDocument
from gateway.stores.file.reader import FileReader, read_document
from gateway.stores.file.shared_file import SharedFile
from gateway.stores.last_writer_wins.map import Updates
from gateway.stores.record import WorkerRecord
from gateway.stores.renewals import Renewals
from gateway.stores.watched import WatchedStore
from gateway.upstream.address import spellings_of

#: Seconds between two polls of the file.
POLL_INTERVAL = 0.2
#: Seconds for a write, including the wait for other writers, and how much longer to wait for a disk that
#: hangs.
WRITE_TIMEOUT, HANG_MARGIN = 0.85, 0.1
#: How long an expired record stays in the file. Until then its gateway can renew it: the record is still
#: there, so nobody else deleted it.
PRUNE_AFTER = timedelta(seconds=60)

_Result = TypeVar("_Result")


class FileStore(WatchedStore):
    """A store in the file at ``path``. ``write_timeout`` is for one write, in seconds."""

    writable = True
    keeps_cordons = True

    def __init__(self, path: Path, *, write_timeout: float = WRITE_TIMEOUT) -> None:
        super().__init__(f"the file of workers {path}")
        self._path = path
        self._file = SharedFile(path)
        self._write_timeout = write_timeout
        self._renewals = Renewals()
        self._expiring: dict[str, _ExpiringRecord] = {}
        self._readers: set[FileReader] = set()
        self._had_workers = False
        # Writes have one thread, so that no write of this process overtakes another.
        self._read_thread = DaemonThread("file-reader")
        self._write_thread = DaemonThread("file-writer")

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """See Store."""
        if ttl is None:
            await self._write(lambda document: document.put(record, None, _now()))
            self._note_written(record.url, record)
            if expiring := self._expiring.get(record.url):
                expiring.record = record
            return
        expiring = _ExpiringRecord(record, timedelta(seconds=ttl))
        await self._write(expiring.register)
        self._note_written(record.url, record)
        self._expiring[record.url] = expiring
        await self._renewals.start(record.url, ttl, lambda: self._write(expiring.renew))

    async def delete(self, url: str) -> bool:
        """See Store."""
        for each in spellings_of(url, self._expiring):
            del self._expiring[each]
            await self._renewals.stop(each)
        found = await self._write(lambda document: document.delete(url))
        for each in {url, *found}:
            self._note_written(each, None)
        return bool(found)

    async def write_cordons(self, updates: Updates) -> None:
        """See Store."""
        await self._write(lambda document: document.write_cordons(updates))

    async def close(self) -> None:
        """See Store."""
        await super().close()
        await self._renewals.close()
        self._read_thread.close()
        self._write_thread.close()

    async def _feed(self, emit: Emit) -> None:
        reader = FileReader(self._file)
        self._readers.add(reader)
        try:
            await self._poll(reader, emit)
        finally:
            self._readers.discard(reader)

    async def _poll(self, reader: FileReader, emit: Emit) -> None:
        while True:
            try:
                changes = await self._read_thread.run(reader.changes)
            except (OSError, InvalidDocument) as error:
                # An editor may just be writing the file, so a single failure does not count.
                if reader.failures > 1:
                    self._status.disconnected(str(error))
            else:
                self._status.connected()
                self._had_workers = reader.had_workers
                for change in changes:
                    await emit(change)
            await asyncio.sleep(POLL_INTERVAL)

    def _note_written(self, url: str, record: WorkerRecord | None) -> None:
        for reader in self._readers:
            reader.written(url, record)

    async def _write(self, edit: Callable[[Document], _Result]) -> _Result:
        until = time.monotonic() + self._write_timeout
        try:
            # If the disk hangs, the thread stays blocked, but the caller does not.
            async with asyncio.timeout(self._write_timeout + HANG_MARGIN):
                return await self._write_thread.run(partial(self._edit_file, edit, until))
        except TimeoutError:
            raise StoreUnavailable(f"{self._path} could not be written in time") from None
        except (OSError, InvalidDocument) as error:
            raise StoreUnavailable(f"{self._path} was not changed: {error}") from error

    def _edit_file(self, edit: Callable[[Document], _Result], until: float) -> _Result:
        with self._file.locked(until):
            document = read_document(self._file, had_workers=self._had_workers)
            before = document.text
            document.prune(_now() - PRUNE_AFTER)
            result = edit(document)
            if document.text != before:
                self._file.replace(document.text)
            self._had_workers = bool(document)
            return result


@dataclass(slots=True, eq=False)
class _ExpiringRecord:
    """A record with a TTL that this store renews, and its current expiry."""

    record: WorkerRecord
    ttl: timedelta
    expires: datetime = datetime.min.replace(tzinfo=UTC)

    def register(self, document: Document) -> bool:
        self.expires = _now() + self.ttl
        document.put(self.record, self.expires, _now())
        return True

    def renew(self, document: Document) -> bool:
        """Renew the record; return False if somebody else removed it."""
        if document.entry(self.record.url) is None:
            was_pruned = self.expires + PRUNE_AFTER <= _now()
            return was_pruned and self.register(document)
        self.expires = _now() + self.ttl
        document.extend(self.record.url, self.expires)
        return True


def _now() -> datetime:
    return datetime.now(UTC)
