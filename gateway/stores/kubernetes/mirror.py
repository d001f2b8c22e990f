"""What the API server has told so far, and up to where.

Owns: the place in its changes, and what each event does. Must never enter: I/O, time.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.stores.base import Gone, Put, Reset
from gateway.stores.kubernetes.failures import error_event
from gateway.stores.kubernetes.objects import Object, part, text
from gateway.stores.kubernetes.reading import Defaults, ObjectWorkers, Resource, name_of
from gateway.stores.kubernetes.worker_index import Name, WorkerIndex


class Mirror:
    """``version`` is where to go on from; None: the place is lost, or was never found."""

    def __init__(self, kind: Resource, defaults: Defaults) -> None:
        self._kind = kind
        self._defaults = defaults
        self._members = WorkerIndex()
        self.version: str | None = None

    def read(self, objects: Iterable[Object]) -> dict[Name, ObjectWorkers]:
        """What the objects of a page say, which is far less than they hold."""
        return {name_of(each): self._kind.read(each, self._defaults) for each in objects}

    def restart(self, readings: dict[Name, ObjectWorkers], version: str) -> Reset:
        """All there is was read, at ``version``."""
        self._members.replace(readings)
        self.version = version
        return Reset(dict(self._members.records))

    def take(self, event: Object) -> list[Put | Gone]:
        """What an event changes. Raises Failure, which it can be as well."""
        kind, thing = text(event, "type"), part(event, "object")
        if kind == "ERROR":
            raise error_event(thing)
        changes: list[Put | Gone] = []
        if kind in ("ADDED", "MODIFIED"):
            changes = self._members.update(name_of(thing), self._kind.read(thing, self._defaults))
        elif kind == "DELETED":
            changes = self._members.update(name_of(thing), None)
        # Of a bookmark this is all; events of kinds that are not known yet have it too.
        self.version = text(thing, "metadata", "resourceVersion") or self.version
        return changes
