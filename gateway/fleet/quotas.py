"""How many connections to workers the gateway has on its own account.

Owns: that number. Must never enter: what they are for, connections of clients' requests. A process may open
so many files, and what is left of them for clients is told to these; so all else must have an end.
"""

from __future__ import annotations

import asyncio

#: Kinds of such connections, each with a number of its own: none may be held up by another. Calls can take
#: half an hour, and many workers that answer nothing keep those waiting that are asked whether anybody is
#: there.
KINDS = 4
_ANY = 1 << 30


class Quotas:
    """One per fleet: as many of each kind as there are workers, until ``limit`` is called. One more waits."""

    def __init__(self) -> None:
        self.limit(_ANY)

    def limit(self, each: int) -> None:
        """So many of each kind at once from now on; for before any began."""
        #: First questions of probes to workers that do not serve, and all others.
        self.first_contacts = asyncio.Semaphore(each)
        self.probes = asyncio.Semaphore(each)
        #: Calls to several workers for one client; a client's call to one worker is none of them.
        self.calls = asyncio.Semaphore(each)
        self.aborts = asyncio.Semaphore(each)
