"""The connection state of a store.

Owns: whether the store can be read, why not, and the log lines about it. Must never enter: what follows from
an outage.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Status:
    """The state of one store, which is not connected at first. ``name`` is its name in log lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.healthy = False
        self.reason = "not reached yet"

    def __repr__(self) -> str:
        return f"<Status of {self.name}: {self.reason or 'healthy'}>"

    def connected(self) -> None:
        if not self.healthy:
            log.info("%s: connected", self.name)
        self.healthy, self.reason = True, ""

    def disconnected(self, reason: str) -> None:
        """Record an outage. ``reason`` is shown to users and must contain no secret."""
        if self.healthy or reason != self.reason:
            log.warning("%s: not connected, the fleet stays as it is known: %s", self.name, reason)
        self.healthy, self.reason = False, reason
