"""A last-writer-wins map: which of two entries of one key counts, on which all replicas agree.

Owns: the entries, their order, their text and their JSON. Must never enter: what a key means, a clock, I/O.

This is the LWW-element-set of Shapiro et al., "A comprehensive study of Convergent and Commutative Replicated
Data Types" (INRIA RR-7506, 2011), section 3.3.3: replicas that merged the same entries are equal, in whatever
order and how often these arrived. A removed key stays in the map for a while (a tombstone), against entries
that arrive late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

_DIGITS = 20


class Versioned(NamedTuple):
    """A last-writer-wins register: of two entries of one key, the larger one is the later write and counts.

    ``timestamp`` is larger than that of every entry that ``writer`` had seen: microseconds of a clock, or the
    largest one seen plus 1. Entries with equal timestamps were written concurrently; their order is
    arbitrary, but the same everywhere. ``writer`` is a process of a gateway. ``present`` says whether the
    entry adds or removes its key. An undated entry (0, "") was written by somebody who knows no order: a
    person who edits a file, or a gateway of an old version."""

    timestamp: int
    writer: str
    present: bool

    @property
    def dated(self) -> bool:
        return self.timestamp > 0

    @property
    def text(self) -> str:
        """``timestamp`` and ``writer``; a later one is a larger text, and "" is undated."""
        return f"{self.timestamp:0{_DIGITS}d} {self.writer}" if self.dated else ""

    @classmethod
    def from_text(cls, text: str, present: bool) -> Versioned:
        """Return the entry with this ``text``; any other text is undated."""
        count, _, writer = text.partition(" ")
        if len(count) == _DIGITS and count.isascii() and count.isdigit():
            return cls(int(count), writer, present)
        return undated(present)


#: The URL of a worker, which needs not be registered here, and a reason.
Key = tuple[str, str]
Updates = Mapping[Key, Versioned]
#: Whether each key is to be present.
Changes = Mapping[Key, bool]

_NEVER = Versioned(-1, "", present=False)


def undated(present: bool) -> Versioned:
    """Return an entry without an order."""
    return Versioned(0, "", present)


def to_rows(updates: Updates) -> list[tuple[Any, ...]]:
    """Return ``updates`` as a JSON array."""
    return [(*key, *entry) for key, entry in updates.items()]


def from_rows(rows: Iterable[Iterable[Any]]) -> Updates:
    """Return the updates that ``to_rows`` was given."""
    return {(url, reason): Versioned(*entry) for url, reason, *entry in rows}


class LastWriterWinsMap:
    """One replica. ``writer`` names it in its entries; ``clock`` counts microseconds. Of more tombstones than
    ``most_tombstones()`` the first ones are dropped."""

    def __init__(
        self, most_tombstones: Callable[[], int], writer: str = "", clock: Callable[[], int] = lambda: 0
    ) -> None:
        self._most_tombstones = most_tombstones
        self._writer = writer
        self._clock = clock
        self._latest = 0
        self._entries: dict[Key, Versioned] = {}
        self._tombstones: OrderedDict[Key, None] = OrderedDict()

    def get(self, key: Key) -> Versioned | None:
        """Return the entry of ``key``; None if there is none, or its tombstone was dropped."""
        return self._entries.get(key)

    def snapshot(self) -> Updates:
        """Return all entries, tombstones included."""
        return dict(self._entries)

    def edit(self, changes: Changes) -> Updates:
        """Write ``changes`` as the latest entries of this replica; return them for all others."""
        now = self._now()
        updates = {key: Versioned(now, self._writer, present) for key, present in changes.items()}
        return self.merge(updates)

    def merge(self, updates: Updates) -> Updates:
        """Merge entries of another replica; return those that were later than the ones known here."""
        later = {key: entry for key, entry in updates.items() if entry > self._entries.get(key, _NEVER)}
        for key, entry in later.items():
            self._latest = max(self._latest, entry.timestamp)
            self._entries[key] = entry
            self._tombstones.pop(key, None)
            if not entry.present:
                self._tombstones[key] = None
        for _ in range(len(self._tombstones) - self._most_tombstones()):
            del self._entries[self._tombstones.popitem(last=False)[0]]
        return later

    def merge_change(self, updates: Updates) -> Updates:
        """Merge what was changed just now; an undated entry counts as written now, if it changes anything."""
        now = self._now()
        dated = {
            key: entry if entry.dated else entry._replace(timestamp=now)
            for key, entry in updates.items()
            if entry.dated or entry.present != self._entries.get(key, _NEVER).present
        }
        return self.merge(dated)

    def _now(self) -> int:
        return max(self._clock(), self._latest + 1)
