"""Cordons in stores under several spellings of one worker's URL.

Owns: folding them into one entry, and writing one entry to all of them. Must never enter: a store's kind,
what a reason means.

Gateways keep cordons by the identity of a worker. Older ones wrote them under the spelling that was
registered. Such an entry is read like any other, and gets each later write as well: otherwise it would count
again once the tombstone of the other one is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.stores.last_writer_wins.map import Key, Updates, Versioned
from gateway.upstream.address import identity_of


def by_identity(updates: Updates) -> Updates:
    """Return the latest of the entries of each worker and reason."""
    found: dict[Key, Versioned] = {}
    for (url, reason), entry in updates.items():
        key = identity_of(url), reason
        found[key] = max(entry, found.get(key, entry))
    return found


def under_all_spellings(updates: Updates, known: Iterable[Key]) -> Updates:
    """Return ``updates``, which are by identity, with the same entries under other spellings in ``known``."""
    others = {
        key: updates[identity]
        for key in known
        if key not in updates and (identity := (identity_of(key[0]), key[1])) in updates
    }
    return {**updates, **others}
