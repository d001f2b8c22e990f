"""What a worker lacks after a call that pauses it, and what it has again after one that resumes it.

Owns: reading the tags and the level in such calls. Must never enter: who is paused, I/O.

Engines release their memory and take it back by tags, in the body of the call or its query. A worker that
got back its weights only cannot serve yet.
"""

from __future__ import annotations

import json
from urllib.parse import parse_qs

from gateway.fleet.client import WorkerCall
from gateway.fleet.cordons.pauses import Parts

#: What a worker lacks whose memory was released without a word about tags.
MEMORY = frozenset({"weights", "kv_cache"})
#: How many tags a call may have, and characters of each: no engine has more, and all of them are remembered.
TAGS_LIMIT, TAG_LIMIT = 16, 64
#: What one lacks that sleeps at level 0, with all its memory.
AT_LEVEL_0 = frozenset({"scheduling"})


def paused_resources(kind: str, call: WorkerCall) -> Parts:
    """Parts of ``kind`` that a worker lacks once it has accepted ``call``; never none."""
    tags = _tags(call)
    if kind != "memory":
        return frozenset({kind})
    if _query(call).get("level") == ["0"]:
        return AT_LEVEL_0
    return tags or MEMORY


def resumed_resources(kind: str, call: WorkerCall) -> tuple[Parts, bool]:
    """Parts that it has again, and whether it also has all others."""
    if kind != "memory":
        return frozenset({kind}), True
    tags = _tags(call)
    return tags or MEMORY | AT_LEVEL_0, not tags


def _tags(call: WorkerCall) -> Parts:
    tags = _query(call).get("tags", [])
    try:
        body = json.loads(call.body) if call.body.strip() else None
    except (ValueError, RecursionError):
        body = None  # the engine will say so
    named = body.get("tags") if isinstance(body, dict) else None
    if isinstance(named, str):
        named = [named]
    if isinstance(named, list):
        tags += [tag for tag in named if isinstance(tag, str)]
    found = frozenset(tag for tag in tags if len(tag) <= TAG_LIMIT and tag.isprintable())
    return found if len(found) <= TAGS_LIMIT else frozenset()


def _query(call: WorkerCall) -> dict[str, list[str]]:
    return parse_qs(call.target.partition(b"?")[2].decode("latin-1"))
