"""Records in a file: processes of one host share a fleet, and a person can edit it.

Owns: looking at the file, writes within their time, leases. Must never enter: JSON, locks, how a file is
written.

A change is noticed by looking five times a second; no file system fails to tell of it that way. A file that
cannot be read, or is missing after there were workers in it, leaves the fleet as it is known until it is
mended. It is not written to either, as that would undo somebody's work. Leases are stamps of the host's
clock: setting it forward ends them early, setting it back late.
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
from gateway.stores.file.document import Document, Unreadable
from gateway.stores.file.reader import FileReader, read
from gateway.stores.file.shared_file import SharedFile
from gateway.stores.record import WorkerRecord
from gateway.stores.renewals import Renewals
from gateway.stores.versioned import Updates
from gateway.stores.watched import WatchedStore

#: Seconds between two looks at the file.
LOOK_EVERY = 0.2
#: Seconds for a write, with the wait for other writers; and how much later it is given up if the disk hangs.
PATIENCE, HUNG = 0.85, 0.1
#: What has run out is taken out of the file so much later. Until then its keeper can tell that nobody took it
#: away, and goes on with it.
PRUNE_AFTER = timedelta(seconds=60)

_Result = TypeVar("_Result")


class FileStore(WatchedStore):
    """See Store. ``patience`` is in seconds, for one write."""

    writable = True
    keeps_cordons = True

    def __init__(self, path: Path, *, patience: float = PATIENCE) -> None:
        super().__init__(f"the file of workers {path}")
        self._path = path
        self._disk = SharedFile(path)
        self._patience = patience
        self._renewals = Renewals()
        self._kept: dict[str, _Kept] = {}
        self._looks: set[FileReader] = set()
        self._known = False
        # One writes, so that no write overtakes another of this process.
        self._reader = DaemonThread("file-reader")
        self._writer = DaemonThread("file-writer")

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """See Store."""
        if ttl is None:
            await self._write(lambda document: document.put(record, None, _now()))
            self._wrote(record.url, record)
            if kept := self._kept.get(record.url):
                kept.record = record
            return
        kept = _Kept(record, timedelta(seconds=ttl))
        await self._write(kept.register)
        self._wrote(record.url, record)
        self._kept[record.url] = kept
        await self._renewals.start(record.url, ttl, lambda: self._write(kept.renew))

    async def delete(self, url: str) -> bool:
        """See Store."""
        self._kept.pop(url, None)
        await self._renewals.stop(url)
        found = await self._write(lambda document: document.delete(url))
        self._wrote(url, None)
        return found

    async def write_cordons(self, updates: Updates) -> None:
        """See Store."""
        await self._write(lambda document: document.write_cordons(updates))

    async def close(self) -> None:
        """See Store."""
        await super().close()
        await self._renewals.close()
        self._reader.close()
        self._writer.close()

    async def _feed(self, emit: Emit) -> None:
        look = FileReader(self._disk)
        self._looks.add(look)
        try:
            await self._follow(look, emit)
        finally:
            self._looks.discard(look)

    async def _follow(self, look: FileReader, emit: Emit) -> None:
        while True:
            try:
                changes = await self._reader.run(look.changes)
            except (OSError, Unreadable) as error:
                # An editor may be in the middle of writing it: only what is bad twice is bad.
                if look.failures > 1:
                    self._status.down(str(error))
            else:
                self._status.up()
                self._known = look.known
                for change in changes:
                    await emit(change)
            await asyncio.sleep(LOOK_EVERY)

    def _wrote(self, url: str, record: WorkerRecord | None) -> None:
        for look in self._looks:
            look.written(url, record)

    async def _write(self, edit: Callable[[Document], _Result]) -> _Result:
        until = time.monotonic() + self._patience
        try:
            # A disk that hangs keeps its thread, but not whoever waits for the write.
            async with asyncio.timeout(self._patience + HUNG):
                return await self._writer.run(partial(self._change, edit, until))
        except TimeoutError:
            raise StoreUnavailable(f"{self._path} could not be written in time") from None
        except (OSError, Unreadable) as error:
            raise StoreUnavailable(f"{self._path} was not changed: {error}") from error

    def _change(self, edit: Callable[[Document], _Result], until: float) -> _Result:
        with self._disk.locked(until):
            document = read(self._disk, known=self._known)
            before = document.text
            document.prune(_now() - PRUNE_AFTER)
            result = edit(document)
            if document.text != before:
                self._disk.replace(document.text)
            self._known = bool(document)
            return result


@dataclass(slots=True, eq=False)
class _Kept:
    """A record under a lease of ``length``, which lasts until ``expires``."""

    record: WorkerRecord
    length: timedelta
    expires: datetime = datetime.min.replace(tzinfo=UTC)

    def register(self, document: Document) -> bool:
        self.expires = _now() + self.length
        document.put(self.record, self.expires, _now())
        return True

    def renew(self, document: Document) -> bool:
        """False: somebody took the record away."""
        if document.entry(self.record.url) is None:
            ran_out = self.expires + PRUNE_AFTER <= _now()
            return ran_out and self.register(document)
        self.expires = _now() + self.length
        document.extend(self.record.url, self.expires)
        return True


def _now() -> datetime:
    return datetime.now(UTC)
