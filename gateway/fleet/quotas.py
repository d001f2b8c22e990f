"""Caps on the gateway's own connections to workers, derived from RLIMIT_NOFILE so that clients keep theirs.

Owns: the number of connections of each kind: first contacts, probes, control calls and aborts. Must never
enter: what is sent on them, connections of clients' requests.
"""

from __future__ import annotations

import asyncio

#: Kinds of such connections. Each kind has a cap of its own, so that none can block another: a control call
#: may take half an hour, and many workers that do not answer keep first contacts waiting.
KINDS = 4
_UNLIMITED = 1 << 30
#: The most aborts at one worker at once: thousands of clients that disconnect together must not open
#: thousands of connections.
ABORTS_AT_WORKER = 32


class Quotas:
    """The caps of one fleet; a connection beyond its cap waits. Without a call of ``limit`` there is none."""

    def __init__(self) -> None:
        self.limit(_UNLIMITED)

    def limit(self, each: int) -> None:
        """Allow ``each`` connections of each kind at once. To be called before any of them is made."""
        #: The first request of a probe to a worker that does not serve.
        self.first_contacts = asyncio.Semaphore(each)
        #: All other requests of probes.
        self.probes = asyncio.Semaphore(each)
        #: Control calls that go to several workers for one client; a call to one worker is not capped.
        self.calls = asyncio.Semaphore(each)
        self.aborts = asyncio.Semaphore(each)


class WorkerQuotas:
    """The caps for connections to one worker: those of its fleet, and that of the aborts at itself."""

    __slots__ = ("aborts", "of_fleet")

    def __init__(self, of_fleet: Quotas) -> None:
        self.of_fleet = of_fleet
        self.aborts = asyncio.Semaphore(ABORTS_AT_WORKER)
