"""What an API server keeps: objects with versions, the changes that led to them, snapshots of lists.

The rules are those of the real one: a version is one number for the whole cluster; a change is remembered
until it is compacted; a watch with a selector sees an object that begins to match as added, and one that
ceases to as deleted; the pages of one list show one moment.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Matches = Callable[[Object], bool]


class Status(Exception):
    """A refusal, as the API server words it."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


@dataclass(frozen=True)
class Changed:
    version: int
    before: Object | None
    after: Object | None


class Cluster:
    """Objects of all kinds, by kind ("pods", "endpointslices"), namespace and name."""

    def __init__(self) -> None:
        self.version = 1000
        self._objects: dict[str, dict[tuple[str, str], Object]] = {"pods": {}, "endpointslices": {}}
        self._history: list[tuple[str, Changed]] = []
        self._oldest = self.version
        self._snapshots: dict[int, list[Object]] = {}
        #: Set at every change.
        self.listeners: set[asyncio.Event] = set()

    def put(self, resource: str, object_: Object) -> None:
        """Create it, or replace the one of its name."""
        object_ = deepcopy(object_)
        meta = object_["metadata"]
        before = self._objects[resource].get((meta["namespace"], meta["name"]))
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        self._objects[resource][meta["namespace"], meta["name"]] = object_
        self._record(resource, before, object_)

    def delete(self, resource: str, name: str, namespace: str = "default") -> None:
        before = self._objects[resource].pop((namespace, name))
        self.version += 1
        self._record(resource, before, None)

    def compact(self) -> None:
        """Forget all changes, and all lists that were begun. Who has kept up does not notice."""
        self._oldest = self.version
        self._history.clear()
        self._snapshots.clear()

    def restore(self, version: int) -> None:
        """Be a backup that is as old as ``version``; its objects stay, for it is not about them."""
        self.version = version
        self._history.clear()

    def page(self, resource: str, namespace: str | None, query: Mapping[str, str]) -> Object:
        """One page. Raises Status."""
        matches = selector(query.get("labelSelector", ""))
        limit = int(query.get("limit") or 0)
        if token := query.get("continue"):
            version, start = json.loads(base64.b64decode(token))
            if version not in self._snapshots:
                raise Status(410, "Expired", "The provided continue parameter is too old")
            found = self._snapshots[version]
        else:
            version, start = self.version, 0
            found = [
                object_
                for (within, _), object_ in sorted(self._objects[resource].items())
                if namespace in (None, within) and matches(object_)
            ]
            self._snapshots[version] = found
        end = start + limit if limit else len(found)
        meta: Object = {"resourceVersion": str(version)}
        if end < len(found):
            meta["continue"] = base64.b64encode(json.dumps([version, end]).encode()).decode()
        return {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": found[start:end]}

    def events(self, resource: str, namespace: str | None, matches: Matches, after: int) -> list[Object]:
        """What a watch sees of all that came after version ``after``. Raises Status."""
        if after < self._oldest:
            raise Status(410, "Expired", f"too old resource version: {after} ({self._oldest})")
        if after > self.version:
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            text = f"Timeout: Too large resource version: {after}, current: {self.version}"
            raise Status(504, "Timeout", text, causes=[cause], retryAfterSeconds=1)
        changes = (each for kind, each in self._history if kind == resource and each.version > after)
        events = (_event(change, namespace, matches) for change in changes)
        return [event for event in events if event is not None]

    def _record(self, resource: str, before: Object | None, after: Object | None) -> None:
        self._history.append((resource, Changed(self.version, before, after)))
        for listener in self.listeners:
            listener.set()


def _event(change: Changed, namespace: str | None, matches: Matches) -> Object | None:
    def seen(object_: Object | None) -> bool:
        within = object_ and namespace in (None, object_["metadata"]["namespace"])
        return bool(within and object_ and matches(object_))

    if seen(change.after):
        return {"type": "MODIFIED" if seen(change.before) else "ADDED", "object": change.after}
    if seen(change.before):
        last = deepcopy(change.before) or {}
        last["metadata"]["resourceVersion"] = str(change.version)
        return {"type": "DELETED", "object": last}
    return None


def selector(text: str) -> Matches:
    """Return a test for the labels that ``text`` names: ``name=value``, with commas between them."""
    wanted = dict(each.split("=") for each in text.split(",") if each)
    return lambda object_: wanted.items() <= object_["metadata"]["labels"].items()
