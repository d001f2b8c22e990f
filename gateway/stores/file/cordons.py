"""The cordons in a file of workers.

Owns: their JSON, and what it means when its parts disagree. Must never enter: I/O, a clock, what a reason
means.

``"marks"`` lists the reasons that are present, by URL. It is all that a person writes, and all that gateways
wrote before entries had versions. ``"marks_said"`` has the versions of these entries, ``"marks_lifted"``
those of removed ones (tombstones). Where the list contradicts the versions, somebody edited the list alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.stores.versioned import Updates, Versioned, undated

PRESENT, VERSIONS, TOMBSTONES = MEMBERS = "marks", "marks_said", "marks_lifted"
#: Tombstones that are kept in a file; the oldest are dropped first.
MOST_TOMBSTONES = 2048


class StoredCordons:
    """The cordons in ``members``, which are those of a JSON object.

    Raises ValueError, which names the member and the URL at fault.
    """

    def __init__(self, members: Mapping[str, Any]) -> None:
        present = _read(PRESENT, members, list)
        versions, tombstones = _read(VERSIONS, members, dict), _read(TOMBSTONES, members, dict)
        self._known: dict[str, dict[str, Versioned]] = {}
        for url in {**present, **versions, **tombstones}:
            dates, removed = versions.get(url, {}), tombstones.get(url, {})
            entries = dict.fromkeys(dates, undated(present=False))
            entries |= {reason: Versioned.from_text(text, present=False) for reason, text in removed.items()}
            for reason in present.get(url, ()):
                text = "" if reason in removed else dates.get(reason, "")
                entries[reason] = Versioned.from_text(text, present=True)
            self._known[url] = entries

    @property
    def known(self) -> Updates:
        """All entries."""
        return {url: dict(entries) for url, entries in self._known.items()}

    @property
    def members(self) -> Mapping[str, Any]:
        """The members to be written; empty ones are left out."""
        written: dict[str, dict[str, Any]] = {name: {} for name in MEMBERS}
        for url, entries in self._known.items():
            for reason, entry in sorted(entries.items()):
                if entry.present:
                    written[PRESENT].setdefault(url, []).append(reason)
                if entry.dated:
                    name = VERSIONS if entry.present else TOMBSTONES
                    written[name].setdefault(url, {})[reason] = entry.text
        return {name: by_url for name, by_url in written.items() if by_url}

    def update(self, updates: Updates) -> None:
        """Merge ``updates``: of two entries of one key the later one counts."""
        for url, entries in updates.items():
            known = self._known.setdefault(url, {})
            for reason, entry in entries.items():
                known[reason] = max(entry, known.get(reason, entry))
        removed = [
            (entry, url, reason)
            for url, entries in self._known.items()
            for reason, entry in entries.items()
            if not entry.present
        ]
        for _, url, reason in sorted(removed, reverse=True)[MOST_TOMBSTONES:]:
            del self._known[url][reason]


def _read(name: str, members: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
    """Return the member called ``name``: by URL, a list of strings, or an object of them."""
    what = "lists" if kind is list else "objects"
    found = members.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be {what} of texts, by URL")
    for url, each in found.items():
        texts = list(each.values() if isinstance(each, dict) else each or ())
        if not isinstance(each, kind) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name} of {url} must be {what} of texts, by URL")
    return found
