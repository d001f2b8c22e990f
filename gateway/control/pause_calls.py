"""Pause and resume calls: which resources of a worker a call pauses or resumes.

Owns: reading the tags and the level of such calls. Must never enter: which workers are paused, I/O.

Engines release and restore their memory by tags, in the body or the query of the call. A worker that has
restored only its weights cannot serve yet. Source: the routes ``/release_memory_occupation`` and
``/sleep`` of the engines.
"""

from __future__ import annotations

import json
from urllib.parse import parse_qs

from gateway.fleet.client import WorkerCall
from gateway.fleet.cordons import Reasons

#: The resources that a call to release memory pauses if it names no tags.
MEMORY = frozenset({"weights", "kv_cache"})
#: Most tags of a call, and characters of a tag. No engine has more, and all of them are stored.
TAGS_LIMIT, TAG_LIMIT = 16, 64
#: The resource that sleep level 0 pauses; the engine keeps its memory.
AT_LEVEL_0 = frozenset({"scheduling"})


def paused_resources(kind: str, call: WorkerCall) -> Reasons:
    """Return the resources of ``kind`` that a worker has paused once it accepted ``call``; never empty."""
    tags = _tags(call)
    if kind != "memory":
        return frozenset({kind})
    if _query(call).get("level") == ["0"]:
        return AT_LEVEL_0
    return tags or MEMORY


def resumed_resources(kind: str, call: WorkerCall) -> tuple[Reasons, bool]:
    """Return the resources that ``call`` resumes, and True if it resumes all others as well."""
    if kind != "memory":
        return frozenset({kind}), True
    tags = _tags(call)
    return tags or MEMORY | AT_LEVEL_0, not tags


def _tags(call: WorkerCall) -> Reasons:
    tags = _query(call).get("tags", [])
    try:
        body = json.loads(call.body) if call.body.strip() else None
    except (ValueError, RecursionError):
        body = None  # the engine will refuse it
    named = body.get("tags") if isinstance(body, dict) else None
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list):
        tags += [tag for tag in named if isinstance(tag, str)]
    found = frozenset(tag for tag in tags if len(tag) <= TAG_LIMIT and tag.isprintable())
    return found if len(found) <= TAGS_LIMIT else frozenset()


def _query(call: WorkerCall) -> dict[str, list[str]]:
    return parse_qs(call.target.partition(b"?")[2].decode("latin-1"))
