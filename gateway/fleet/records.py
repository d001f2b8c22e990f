"""The records of a store by worker.

Owns: which record counts of several that spell one URL differently. Must never enter: a store, the fleet.

Gateways write one record for each worker. Older ones wrote one for each spelling of its URL, and so may two
gateways at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.stores.record import WorkerRecord
from gateway.upstream.address import identity_of


class RecordsByWorker:
    """The records of a store. Of several records of one worker the one that was known first counts."""

    def __init__(self) -> None:
        #: By identity of the worker, then by URL.
        self._records: dict[str, dict[str, WorkerRecord]] = {}

    def replace(self, records: Iterable[WorkerRecord]) -> list[WorkerRecord]:
        """Replace all records; return the one that counts of each worker."""
        self._records.clear()
        for record in records:
            self.put(record)
        return [next(iter(each.values())) for each in self._records.values()]

    def put(self, record: WorkerRecord) -> WorkerRecord:
        """Add a record, or replace that of its URL; return the one that counts of its worker."""
        spellings = self._records.setdefault(record.identity, {})
        spellings[record.url] = record
        return next(iter(spellings.values()))

    def remove(self, url: str) -> WorkerRecord | None:
        """Remove the record of exactly ``url``; return the one that counts of its worker now, if any."""
        identity = identity_of(url)
        spellings = self._records.get(identity, {})
        spellings.pop(url, None)
        if not spellings:
            self._records.pop(identity, None)
        return next(iter(spellings.values()), None)
