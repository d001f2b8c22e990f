"""The state that the API server has sent so far.

Owns: the resourceVersion, and the effect of each event. Must never enter: I/O, time.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.stores.base import Gone, Put, Reset
from gateway.stores.kubernetes.failures import error_event
from gateway.stores.kubernetes.objects import Object, part, text
from gateway.stores.kubernetes.reading import Defaults, ObjectWorkers, Resource, name_of
from gateway.stores.kubernetes.worker_index import Name, WorkerIndex


class ObjectCache:
    """The objects so far. ``version`` is the resourceVersion to continue from; None: list first."""

    def __init__(self, resource: Resource, defaults: Defaults) -> None:
        self._kind = resource
        self._defaults = defaults
        self._members = WorkerIndex()
        self.version: str | None = None

    def read(self, objects: Iterable[Object]) -> dict[Name, ObjectWorkers]:
        """Return the workers of each object of a page; the rest of the objects is not kept."""
        return {name_of(each): self._kind.read(each, self._defaults) for each in objects}

    def restart(self, objects: dict[Name, ObjectWorkers], version: str) -> Reset:
        """Replace everything by a complete list, made at ``version``."""
        self._members.replace(objects)
        self.version = version
        return Reset(dict(self._members.records))

    def take(self, event: Object) -> list[Put | Gone]:
        """Apply one event and return the changes. Raises Failure for an ERROR event."""
        type_, object_ = text(event, "type"), part(event, "object")
        if type_ == "ERROR":
            raise error_event(object_)
        changes: list[Put | Gone] = []
        if type_ in ("ADDED", "MODIFIED"):
            changes = self._members.update(name_of(object_), self._kind.read(object_, self._defaults))
        elif type_ == "DELETED":
            changes = self._members.update(name_of(object_), None)
        # A BOOKMARK has nothing else, and future types of events have it as well.
        self.version = text(object_, "metadata", "resourceVersion") or self.version
        return changes
