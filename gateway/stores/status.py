"""Whether a store is in touch with where its records live.

Owns: that fact, why not, and the log lines about it. Must never enter: what is to be done about it.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Status:
    """A store begins out of touch. ``name`` is how log lines call it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.healthy = False
        self.reason = "not reached yet"

    def __repr__(self) -> str:
        return f"<Status of {self.name}: {self.reason or 'healthy'}>"

    def up(self) -> None:
        """It is in touch."""
        if not self.healthy:
            log.info("%s is in touch", self.name)
        self.healthy, self.reason = True, ""

    def down(self, reason: str) -> None:
        """It is not, because of ``reason``, which a person may read and which holds no secret."""
        if self.healthy or reason != self.reason:
            log.warning("%s is out of touch, the fleet stays as it is known: %s", self.name, reason)
        self.healthy, self.reason = False, reason
