"""The meaning of an abort call for each exchange in flight.

Owns: which exchanges an abort call names, and which prompts of them. Must never enter: sending anything, a
dialect.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.formats.base import AnyFormat
from gateway.formats.contract import ANY_OF, Ids, WorkerView
from gateway.formats.optional import AbortTarget, EngineId
from gateway.formats.worker_contract import WorkerInfo
from gateway.proxy.in_flight import InFlightEntry


class AbortNames:
    """The names in one abort call, which is in the dialect of ``format``."""

    def __init__(self, target: AbortTarget, format: AnyFormat) -> None:
        self._everything = target.everything
        self._format: AnyFormat = format
        self._public = frozenset(target.ids)
        self._engine_ids: dict[str, list[EngineId]] = {}
        for engine_id in target.engine_ids:
            self._engine_ids.setdefault(engine_id.id, []).append(engine_id)
        #: Public ids of all exchanges that the call may name, each once.
        self.public_ids = tuple(dict.fromkeys((*target.ids, *self._engine_ids)))

    def select(self, entry: InFlightEntry) -> Ids | None:
        """Return what of ``entry`` the call aborts: all its ids, some, or parts of one; None: nothing."""
        if not self._concerns(entry):
            return None
        if self._everything:
            return entry.ids
        own_format = entry.format is self._format
        names: set[str | int] = {id for id in entry.ids.public if id in self._public}
        for id in entry.ids.public:
            for engine_id in self._engine_ids.get(id, ()):
                if engine_id.path is None:
                    named = own_format
                else:
                    named = not own_format and engine_id.path == entry.path
                if named:
                    names.add(id if engine_id.part is None else engine_id.part)
        if not names:
            return None
        ids = subset(entry.ids, names)
        return self._existing_parts(entry, ids) if ids.parts else ids

    def _concerns(self, entry: InFlightEntry) -> bool:
        """Return True if the call may be about ``entry``.

        It is if ``entry`` is of the same format, or of a route served by workers of several formats and its
        own worker speaks this one.
        """
        if entry.format is self._format:
            return True
        if self._format.capability not in entry.format.capability.split(ANY_OF):
            return False
        return entry.worker is None or entry.worker.offers(self._format.capability) is not None

    def _existing_parts(self, entry: InFlightEntry, ids: Ids) -> Ids | None:
        """Return ``ids``; None if ``entry`` has no such parts, all its ids if they are its only parts."""
        worker = entry.worker
        view: WorkerView = _Undispatched(self._format) if worker is None else worker.view(entry.format.name)
        requests = entry.format.abort(view, entry.request, ids)
        if not requests:
            return None
        return entry.ids if requests == entry.format.abort(view, entry.request, entry.ids) else ids


class _Undispatched:
    """The view of a worker that speaks ``format``, for an exchange that no worker has yet."""

    prefix = b""
    authorization: bytes | None = None

    def __init__(self, format: AnyFormat) -> None:
        self.info: WorkerInfo | None = WorkerInfo("", format.capability, usable=True)


def subset(ids: Ids, names: Collection[str | int]) -> Ids:
    """Return the part of ``ids`` that ``names`` are about: public ids, or numbers of prompts under one id."""
    pairs = [pair for pair in zip(ids.public, ids.dispatch, strict=True) if pair[0] in names]
    if not pairs:
        return Ids(ids.public, ids.dispatch, tuple(sorted(name for name in names if isinstance(name, int))))
    return Ids(tuple(public for public, _ in pairs), tuple(dispatch for _, dispatch in pairs))
