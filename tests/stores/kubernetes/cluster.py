"""What an API server keeps: objects with versions, the changes that led to them, snapshots of lists.

The rules are those of the real one: a version is one number for the whole cluster; a change is remembered
until it is compacted; a watch with a selector sees an object that begins to match as added, and one that
ceases to as deleted; the pages of one list show one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from tests.stores.kubernetes.things import Object


class Status(Exception):
    """A refusal, as the API server words it."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = {"kind": "Status", "message": message, "reason": reason, "details": details, "code": code}


class Cluster:
    """Objects of all kinds ("pods", "endpointslices")."""

    def __init__(self) -> None:
        self.version = 1000
        #: By kind, namespace and name.
        self._objects: dict[tuple[str, str, str], Object] = {}
        #: Version, kind, and the object before and after each change.
        self._history: list[tuple[int, str, Object | None, Object | None]] = []
        self._oldest = self.version
        self._snapshots: dict[int, list[Object]] = {}
        #: Set at every change.
        self.listeners: set[asyncio.Event] = set()

    def put(self, kind: str, object_: Object) -> None:
        """Create it, or replace the one of its name."""
        meta = object_["metadata"]
        self._change((kind, meta["namespace"], meta["name"]), deepcopy(object_))

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        self._change((kind, namespace, name), None)

    def _change(self, key: tuple[str, str, str], after: Object | None) -> None:
        before = self._objects.pop(key, None)
        self.version += 1
        if after is not None:
            after["metadata"]["resourceVersion"] = str(self.version)
            self._objects[key] = after
        self._history.append((self.version, key[0], before, after))
        for listener in self.listeners:
            listener.set()

    def compact(self) -> None:
        """Forget all changes, and all lists that were begun. Who has kept up does not notice."""
        self._oldest = self.version
        self._history.clear()
        self._snapshots.clear()

    def restore(self, version: int) -> None:
        """Be a backup that is as old as ``version``; its objects stay, for it is not about them."""
        self.version = version
        self._history.clear()

    def page(self, kind: str, namespace: str | None, query: Mapping[str, str]) -> Object:
        """One page. Raises Status."""
        version, start = map(int, query.get("continue", f"{self.version}-0").split("-"))
        if "continue" not in query:
            seen = _selection(namespace, query)
            self._snapshots[version] = [
                object_ for key, object_ in sorted(self._objects.items()) if key[0] == kind and seen(object_)
            ]
        elif version not in self._snapshots:
            raise Status(410, "Expired", "The provided continue parameter is too old")
        found = self._snapshots[version]
        end = start + int(query.get("limit") or len(found))
        meta: Object = {"resourceVersion": str(version)}
        if end < len(found):
            meta["continue"] = f"{version}-{end}"
        return {"kind": "List", "metadata": meta, "items": found[start:end]}

    def events(self, kind: str, namespace: str | None, query: Mapping[str, str], after: int) -> list[Object]:
        """What a watch sees of all that came after version ``after``. Raises Status."""
        if after < self._oldest:
            raise Status(410, "Expired", f"too old resource version: {after} ({self._oldest})")
        if after > self.version:
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            text = f"Timeout: Too large resource version: {after}, current: {self.version}"
            raise Status(504, "Timeout", text, causes=[cause], retryAfterSeconds=1)
        seen, events = _selection(namespace, query), []
        for version, of_kind, before, now in self._history:
            if of_kind != kind or version <= after:
                continue
            if now is not None and seen(now):
                events.append({"type": "MODIFIED" if before and seen(before) else "ADDED", "object": now})
            elif before is not None and seen(before):
                last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(version)}}
                events.append({"type": "DELETED", "object": last})
        return events


def _selection(namespace: str | None, query: Mapping[str, str]) -> Callable[[Object], bool]:
    """Return a test for the namespace and the ``labelSelector``: ``name=value``, with commas between them."""
    wanted = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)

    def seen(object_: Object) -> bool:
        meta = object_["metadata"]
        return namespace in (None, meta["namespace"]) and wanted.items() <= meta["labels"].items()

    return seen
