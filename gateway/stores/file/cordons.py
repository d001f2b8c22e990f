"""The cordons in a file of workers.

Owns: their JSON, and what it means when its parts disagree. Must never enter: I/O, a clock, what a reason
means.

``"marks"`` lists the reasons that are present, by URL. It is all that a person writes, and all that gateways
wrote before entries had versions. ``"marks_said"`` has the versions of these entries, ``"marks_lifted"``
those of removed ones (tombstones). Where the list contradicts the versions, somebody edited the list alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from gateway.stores.last_writer_wins.map import Key, LastWriterWinsMap, Updates, Versioned, undated

PRESENT, VERSIONS, TOMBSTONES = MEMBERS = "marks", "marks_said", "marks_lifted"
#: Tombstones that are kept in a file; the oldest are dropped first.
MOST_TOMBSTONES = 2048


def read_cordons(members: Mapping[str, Any]) -> LastWriterWinsMap:
    """Return the cordons in ``members``, which are those of a JSON object. Raises ValueError, which names the
    member and the URL at fault."""
    present, versions, tombstones = (dict(_read(name, members)) for name in MEMBERS)
    entries = dict.fromkeys(versions, undated(present=False))
    entries |= {key: Versioned.from_text(text, present=False) for key, text in tombstones.items()}
    entries |= {key: Versioned.from_text(versions.get(key, ""), present=True) for key in present}
    cordons = LastWriterWinsMap(lambda: MOST_TOMBSTONES)
    cordons.merge(dict(sorted(entries.items(), key=itemgetter(1))))
    return cordons


def members_of(cordons: Updates) -> Mapping[str, Any]:
    """Return the members to be written; empty ones are left out."""
    written: dict[str, dict[str, Any]] = {name: {} for name in MEMBERS}
    for (url, reason), entry in sorted(cordons.items()):
        if entry.present:
            written[PRESENT].setdefault(url, []).append(reason)
        if entry.dated:
            written[VERSIONS if entry.present else TOMBSTONES].setdefault(url, {})[reason] = entry.text
    return {name: by_url for name, by_url in written.items() if by_url}


def _read(name: str, members: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Yield the texts in the member called ``name``: by URL, a list of reasons, or texts by reason."""
    kind, what = (list, "lists") if name == PRESENT else (dict, "objects")
    found = members.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be {what} of texts, by URL")
    for url, each in found.items():
        texts = each.values() if isinstance(each, dict) else each
        if not isinstance(each, kind) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name} of {url} must be {what} of texts, by URL")
        yield from (((url, reason), text) for reason, text in zip(each, texts, strict=True))
