"""The access scope of each path.

Owns: that table. Must never enter: keys, a handler. A path that is not in the table is a control route: a new
route requires an admin key until somebody adds it here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.security.guard import AccessScope


class ScopeTable:
    """The scopes by path. ``inference_trees`` are paths whose sub-paths are inference routes as well."""

    def __init__(
        self,
        *,
        open_paths: Collection[str],
        inference: Collection[str],
        inference_trees: Collection[str] = (),
        metrics: Collection[str] = (),
    ) -> None:
        self._exact: Mapping[str, AccessScope] = {
            **dict.fromkeys(metrics, AccessScope.METRICS),
            **dict.fromkeys((*inference, *inference_trees), AccessScope.INFERENCE),
            **dict.fromkeys(open_paths, AccessScope.OPEN),
        }
        self._trees = tuple(f"{path}/" for path in inference_trees)

    def of(self, path: str) -> AccessScope:
        """Return the scope of ``path``, which is percent-decoded and without its query."""
        found = self._exact.get(path)
        if found is not None:
            return found
        return AccessScope.INFERENCE if path.startswith(self._trees) else AccessScope.CONTROL
